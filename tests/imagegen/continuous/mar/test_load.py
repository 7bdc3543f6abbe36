"""Published MAR state dicts load and come back; what does not fit is refused with one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.imagegen import mar_from_state_dict
from mmspec.imagegen.components import read_component
from mmspec.imagegen.continuous.mar.load import convert_mar as convert
from mmspec.imagegen.continuous.mar.mar_config import MARConfig
from tests.imagegen.continuous.published import TRANSFORMERS, transformer_shapes
from tests.imagegen.continuous.tiny import SIZES, transformer

HEADS = {"encoder_num_heads": 2, "decoder_num_heads": 4}


def on_meta(shapes: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("told", (True, False))
def test_every_published_size_loads_and_comes_back(name: str, told: bool) -> None:
    shapes, entry = transformer_shapes(name), TRANSFORMERS[name]
    assert len(shapes) == entry["num_keys"]
    model = mar_from_state_dict({"model_ema": on_meta(shapes)}, entry["config"] if told else None)
    assert {key: list(value.shape) for key, value in model.state_dict().items()} == shapes
    assert model.config == MARConfig.preset(name)
    assert sum(value.numel() for value in model.state_dict().values()) == entry["num_parameters"]


@torch.no_grad()
def test_a_tiny_model_loads_from_every_wrapper() -> None:
    model = transformer()
    state = model.state_dict()
    other = {name: torch.zeros_like(value) for name, value in state.items()}
    published = {"model": other, "model_ema": state, "optimizer": {}, "epoch": 3, "args": argparse.Namespace(lr=1.0)}
    given = torch.randn(1, 16, 3), torch.ones(1, 16, dtype=torch.bool), torch.tensor([2])
    expected = model(*given)
    for sd in (
        state,
        published,
        {"model": state},
        {"module": {"model": state}},
        {f"module.{n}": v for n, v in state.items()},
    ):
        loaded = mar_from_state_dict(sd, SIZES)
        assert loaded.config == SIZES and not loaded.training
        assert torch.equal(loaded(*given), expected)
    assert loaded.mask_token.data_ptr() == state["mask_token"].data_ptr()


def test_config_fields_known_from_the_weights_are_optional() -> None:
    state = transformer().state_dict()
    assert mar_from_state_dict(state, {**HEADS, "vae_stride": 2, "num_sampling_steps": "ddim4"}).config == SIZES
    sampler = {"cfg": 3.0, "cfg_schedule": "linear", "temperature": 1.0, "num_iter": 64, "grad_checkpointing": False}
    assert mar_from_state_dict(state, {**SIZES.to_dict(), **sampler}).config == SIZES


def without(state: dict, key: str) -> dict:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (lambda sd: without(sd, "fake_latent"), {}, "got no fake_latent"),
        (lambda sd: without(sd, "z_proj.weight"), {}, "z_proj.weight"),
        (lambda sd: {**sd, "loss.scale": torch.zeros(1)}, {}, r"unknown loss\.scale"),
        (lambda sd: {**sd, "mask_token": torch.zeros(1, 1, 5)}, {}, r"mask_token of shape \(1, 1, 5\) instead of"),
        (lambda sd: {**sd, "z_proj.weight": torch.zeros(())}, {}, "instead of"),
        (lambda sd: sd, {"encoder_depth": 1}, r"unknown encoder_blocks\.1\."),
        (lambda sd: sd, {"diffloss_d": 3}, r"got no diffloss\.net\.res_blocks\.2\."),
        (lambda sd: sd, {"img_size": 16}, r"encoder_pos_embed_learned of shape"),
        (lambda sd: sd, {"buffer_size": 4}, r"encoder_pos_embed_learned of shape"),
        (lambda sd: sd, {"encoder_num_heads": 5}, "encoder_embed_dim: expected a multiple of encoder_num_heads 5"),
        (lambda sd: sd, {"class_num": "5"}, "class_num: expected int, got '5'"),
        (lambda sd: sd, {"widths": 5}, r"\['widths'\]"),
        (lambda sd: sd, {"img_size": 7}, "img_size: expected a multiple of 2 pixels"),
        (lambda sd: sd, {"patch_size": 0}, "patch_size: expected at least 1"),
        (lambda sd: {}, {}, "got nothing"),
        (lambda sd: {"optimizer": {}}, {}, "expected tensors"),
        (lambda sd: "mar.pth", {}, r"convert a \.pt with `mmspec convert mar\.pth FOLDER --kind mar`"),
        (lambda sd: "mar.safetensors", {}, "got none there"),
    ],
)
def test_mismatched_weights_and_configs_are_refused(change: Callable, config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        mar_from_state_dict(change(transformer().state_dict()), {**HEADS, "vae_stride": 2, **config})
    assert "\n" not in str(caught.value)


def test_missing_head_counts_are_required_in_the_config() -> None:
    with pytest.raises(ValueError, match="encoder_num_heads: expected it in the config, since 2 layers of width 16"):
        mar_from_state_dict(transformer().state_dict(), {"vae_stride": 2})


def test_a_published_file_is_converted_by_command(tmp_path: Path) -> None:
    state = transformer().state_dict()
    zeros = {name: torch.zeros_like(value) for name, value in state.items()}
    path = tmp_path / "checkpoint-last.pth"
    torch.save({"model": zeros, "model_ema": state, "epoch": 1, "args": argparse.Namespace(cfg=2.9)}, path)
    folder = convert(path, tmp_path / "transformer", config={**HEADS, "vae_stride": 2, "num_sampling_steps": "ddim4"})
    tensors, config = read_component(folder)
    loaded = mar_from_state_dict(tensors, config)
    assert loaded.config == SIZES and torch.equal(loaded.mask_token, state["mask_token"])
    options = ["--kind", "mar", "--heads", "2", "--dtype", "float16"]
    result = CliRunner().invoke(app, ["convert", str(path), str(tmp_path / "half"), *options])
    assert result.exit_code == 0, result.stderr
    assert mar_from_state_dict(*read_component(tmp_path / "half")).mask_token.dtype == torch.float16


class Code:
    def __reduce__(self) -> tuple:
        return print, ("ran",)


def test_code_in_a_file_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    torch.save({"model_ema": Code()}, tmp_path / "bad.pth")
    with pytest.raises(ValueError, match="cannot be read as such"):
        convert(tmp_path / "bad.pth", tmp_path / "out")
    result = CliRunner().invoke(app, ["convert", str(tmp_path / "missing.pth"), str(tmp_path / "out"), "--kind", "mar"])
    assert result.exit_code == 2 and "got none there" in result.stderr
    assert "ran" not in capsys.readouterr().out
