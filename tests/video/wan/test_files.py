"""Models in folders and files: ours, diffusers' in parts, pickles by command; damaged ones are refused with their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.video import CausalWan, load_wan, save_wan
from tests.video.tiny import SIZES, wan
from tests.video.wan.published import to_causal


def same(model: CausalWan, other: CausalWan | None = None) -> bool:
    wanted = (other or wan()).state_dict()
    return all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())


def converted(file: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["convert", str(file), str(out), "--kind", "wan", *options])


def test_a_folder_comes_back(tmp_path: Path) -> None:
    model = wan(local_attn_size=9, sink_size=1)
    save_wan(model, tmp_path / "wan")
    loaded = load_wan(tmp_path / "wan")
    assert loaded.config == model.config and same(loaded)
    assert load_wan(tmp_path / "wan", {"sink_size": 2}).config.sink_size == 2


def test_the_folder_of_a_diffusers_model_in_parts_is_read(tmp_path: Path) -> None:
    state = {name: value.clone() for name, value in wan().state_dict().items()}
    files = {
        name: f"diffusion_pytorch_model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(state)
    }
    for file in set(files.values()):
        save_file({name: value for name, value in state.items() if files[name] == file}, tmp_path / file)
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    stock = {
        "_class_name": "WanTransformer3DModel",
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "image_dim": None,
        "rope_max_seq_len": 1024,
    }
    (tmp_path / "config.json").write_text(json.dumps(stock))
    loaded = load_wan(tmp_path)
    assert loaded.config == SIZES and same(loaded)
    index.write_text(json.dumps({"weight_map": [1]}))
    with pytest.raises(ValueError, match=r"index\.json: expected a weight_map"):
        load_wan(tmp_path)


def test_one_file_of_a_causal_checkpoint_is_read(tmp_path: Path) -> None:
    save_file(
        {f"model.{n}": v.clone() for n, v in to_causal(wan().state_dict()).items()}, tmp_path / "krea.safetensors"
    )
    assert same(load_wan(tmp_path / "krea.safetensors", {"num_heads": 2}))
    with pytest.raises(ValueError, match=r"krea\.safetensors: num_heads: expected it in the config"):
        load_wan(tmp_path / "krea.safetensors")


def test_a_pickle_is_converted_by_command_and_its_average_weights_are_used(tmp_path: Path) -> None:
    causal = {f"model.{name}": value for name, value in to_causal(wan().state_dict()).items()}
    zeros = {name: torch.zeros_like(value) for name, value in causal.items()}
    torch.save({"generator": zeros, "critic": zeros, "generator_ema": causal}, tmp_path / "self_forcing.pt")
    assert converted(tmp_path / "self_forcing.pt", tmp_path / "out", "--heads", "2").exit_code == 0
    assert same(load_wan(tmp_path / "out"))
    options = ("--heads", "2", "--dtype", "bfloat16")
    assert converted(tmp_path / "self_forcing.pt", tmp_path / "half", *options).exit_code == 0
    assert load_wan(tmp_path / "half").dtype == torch.bfloat16


class Code:
    def __reduce__(self) -> tuple:
        return print, ("ran",)


def test_code_in_a_file_is_not_run_and_invalid_models_are_refused(tmp_path: Path) -> None:
    torch.save({"generator": Code()}, tmp_path / "bad.pt")
    result = converted(tmp_path / "bad.pt", tmp_path / "out")
    assert result.exit_code == 2 and "ran" not in result.stdout and "cannot be read as such" in result.stderr
    with pytest.raises(ValueError, match=r"convert a pickle with `mmspec convert .*bad\.pt FOLDER --kind wan`"):
        load_wan(tmp_path / "bad.pt")
    with pytest.raises(
        ValueError, match=r"expected model\.safetensors or diffusion_pytorch_model\.safetensors, got neither"
    ):
        load_wan(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"model\.safetensors: expected safetensors"):
        load_wan(tmp_path)
