"""Pickled checkpoints become safetensors only by the convert command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.imagegen.components import read_component, read_weights
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.load import convert_llamagen as convert
from mmspec.imagegen.llamagen.load import llamagen_from_state_dict, vq_from_state_dict
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQConfig, VQModel

CONFIG = GPTConfig(dim=16, n_layer=1, n_head=2, vocab_size=8, num_classes=3, block_size=256)


class Code:
    def __reduce__(self) -> tuple:
        return print, ("ran",)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    path = tmp_path / "c2i_B_256.pt"
    state = Transformer(CONFIG).state_dict()
    torch.save({"model": state, "steps": 3, "args": argparse.Namespace(lr=1e-4)}, path)
    return path


def test_a_transformer_is_converted_by_command(published: Path, tmp_path: Path) -> None:
    options = ["--kind", "llamagen", "--heads", "2", "--dtype", "bfloat16"]
    result = CliRunner().invoke(app, ["convert", str(published), str(tmp_path / "out" / "transformer"), *options])
    assert result.exit_code == 0, result.stderr
    state, config = read_component(tmp_path / "out" / "transformer")
    model = llamagen_from_state_dict(state, config)
    assert model.config.to_dict() == CONFIG.to_dict() and model.output.weight.dtype == torch.bfloat16
    assert sorted(p.name for p in (tmp_path / "out" / "transformer").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("zipped", [True, False])
def test_a_tokenizer_is_known_by_its_names(tmp_path: Path, zipped: bool) -> None:
    config = VQConfig(codebook_size=8, encoder_ch_mult=(1,), decoder_ch_mult=(1,), z_channels=4, ch=32)
    model = VQModel(config)
    torch.save({"model": model.state_dict()}, tmp_path / "vq_ds16_c2i.pt", _use_new_zipfile_serialization=zipped)
    state, found = read_component(convert(tmp_path / "vq_ds16_c2i.pt", tmp_path / "vq"))
    assert vq_from_state_dict(state, found).config == config
    assert torch.equal(state["quant_conv.weight"], model.quant_conv.weight)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda sd: sd,
        lambda sd: {"ema": sd, "optimizer": {}, "steps": 3},
        lambda sd: {"module": sd},
        lambda sd: {"state_dict": sd},
        lambda sd: {"state_dict": {"model": sd}},
        lambda sd: {f"module.{name}": value for name, value in sd.items()},
        lambda sd: {"model": {f"module._orig_mod.{name}": value for name, value in sd.items()}},
    ],
    ids=["raw", "ema", "module", "state_dict", "nested", "prefix", "prefixes"],
)
def test_the_content_of_a_file_is_recognised_under_every_wrapper(tmp_path: Path, wrap: Callable) -> None:
    config = VQConfig(codebook_size=8, encoder_ch_mult=(1,), decoder_ch_mult=(1,), z_channels=4, ch=32)
    torch.save(wrap(VQModel(config).state_dict()), tmp_path / "vq.pt")
    torch.save(wrap(Transformer(CONFIG).state_dict()), tmp_path / "c2i_B_256.pt")
    assert vq_from_state_dict(*read_component(convert(tmp_path / "vq.pt", tmp_path / "vq"))).config == config
    folder = convert(tmp_path / "c2i_B_256.pt", tmp_path / "gpt", config={"n_head": 2})
    assert llamagen_from_state_dict(*read_component(folder)).config == CONFIG


def test_the_resolution_must_be_known(published: Path, tmp_path: Path) -> None:
    other = published.rename(tmp_path / "mine.pt")
    with pytest.raises(ValueError, match=r"image_size: expected the pixels per side that mine\.pt"):
        convert(other, tmp_path / "out", config={"n_head": 2})
    folder = convert(other, tmp_path / "out", config={"n_head": 2}, image_size=384)
    assert read_component(folder)[1]["block_size"] == 576


def test_a_resolution_against_the_name_is_refused(published: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 256 as in the name"):
        convert(published, tmp_path / "out", config={"n_head": 2}, image_size=384)
    with pytest.raises(ValueError, match="block_size: expected 256"):
        convert(published, tmp_path / "out", config={"n_head": 2, "block_size": 576})
    assert not (tmp_path / "out").exists()


def test_code_in_a_file_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    torch.save({"model": Code()}, tmp_path / "bad.pt")
    (tmp_path / "noise.pt").write_bytes(b"not a checkpoint")
    for name in ("bad.pt", "noise.pt"):
        with pytest.raises(ValueError, match="cannot be read as such"):
            convert(tmp_path / name, tmp_path / "out")
    with pytest.raises(ValueError, match="got none there"):
        convert(tmp_path / "missing.pt", tmp_path / "out")
    assert "ran" not in capsys.readouterr().out
    result = CliRunner().invoke(app, ["convert", str(tmp_path / "bad.pt"), str(tmp_path / "out"), "--kind", "llamagen"])
    assert result.exit_code == 2 and "cannot be read as such" in result.stderr and "ran" not in result.stdout


def test_a_folder_with_only_a_pickle_reports_the_convert_command(published: Path) -> None:
    with pytest.raises(
        ValueError, match=r"got only c2i_B_256\.pt; convert it with `mmspec convert .* --kind llamagen`"
    ):
        read_weights(published.parent / "model.safetensors")
