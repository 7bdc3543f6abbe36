"""`mmspec export` writes what `export_drafter` writes, and refuses with one sentence."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from tests.vlm.drafters.mtp.test_drafter import VOCAB as WORDS
from tests.vlm.drafters.mtp.test_speculators import WIDTH, target
from tests.vlm.tiny import HIDDEN, VOCAB, tiny


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A saved drafter and its target."""
    drafter, target = tmp_path_factory.mktemp("drafter"), tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    Eagle3(Eagle3Config(HIDDEN, 48, 4, VOCAB, levels=(1, 2, 3))).save_pretrained(drafter)
    tiny("llava").save_pretrained(target)
    return drafter, target


def run(*arguments: object):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_the_files_are_written_with_the_targets_embedding(folders: tuple[Path, Path], tmp_path: Path) -> None:
    drafter, target = folders
    out = tmp_path / "out"
    result = run(drafter, "--for", "vllm", "--verifier", target, "--out", out, "--tokens", 4, "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert f"written for vllm to {out}" in result.stdout
    config, weights = json.loads((out / "config.json").read_text()), load_file(out / "model.safetensors")
    assert config["speculators_config"]["verifier"]["name_or_path"] == str(target)
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4
    embedding = tiny("llava").get_input_embeddings().weight
    assert torch.equal(weights["embed_tokens.weight"], embedding)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--for", "llama.cpp"), "--for: expected one of"),
        (("--dtype", "int8"), "--dtype: expected one of bfloat16"),
        (("--tokens", "0"), "--tokens: expected a number of at least 1"),
    ],
)
def test_wrong_options_are_refused(
    options: tuple[str, ...], message: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    drafter, target = folders
    result = run(drafter, "--verifier", target, "--out", tmp_path / "out", *options)
    assert result.exit_code == 2 and message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_layer_of_the_target_is_written_with_the_target_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = target("qwen3")
    model.save_pretrained(tmp_path / "target")
    Mtp(MtpConfig(WIDTH, WORDS), take_apart(model)).save_for(model, tmp_path / "layer", None)
    command = import_module("mmspec.cli.export")  # the package has a function of that name
    monkeypatch.setattr(command, "open_resources", lambda spec, option: SimpleNamespace(model=model))
    out = tmp_path / "out"
    result = run(tmp_path / "layer", "--for", "speculators", "--verifier", tmp_path / "target", "--out", out)
    assert result.exit_code == 0, result.output
    config = json.loads((out / "config.json").read_text())
    assert config["speculators_model_type"] == "mtp" and "mtp_layers.0.input_proj.weight" in load_file(
        out / "model.safetensors"
    )
