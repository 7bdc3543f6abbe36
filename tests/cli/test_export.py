"""`mmspec export` writes what `export_drafter` writes, and refuses with one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
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
