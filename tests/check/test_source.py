"""What MODEL may name, and the one sentence for everything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers as hf
from typer.testing import CliRunner

from mmspec.check.source import find_model
from mmspec.cli import app
from tests.check.folders import without_tensor
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import tiny


def refused(*arguments: str) -> str:
    """The one line of stderr of a command that is a usage error and prints nothing else."""
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exit_code == 2 and result.stdout == "", (result.stdout, result.stderr, result.exception)
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


def cached(cache: Path, repo: str) -> Path:
    """An empty snapshot of a repository in a Hugging Face cache."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's Hugging Face cache, empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("nowhere", "expected a folder, a config file, zoo:NAME or a hub id 'owner/name', got 'nowhere'"),
        ("zoo:nothing", "expected zoo: and one of vlm, "),
        ("zoo:vlm/eagle", "expected a model, got the drafter 'zoo:vlm/eagle' of kind eagle2"),
        ("zoo:clip", "expected the config of a model, with its model_type"),
    ],
)
def test_a_name_of_nothing(spec: str, sentence: str, cache: Path) -> None:
    assert sentence in refused(spec)


def test_a_hub_id_that_is_not_in_the_cache_says_how_to_fetch_it(cache: Path) -> None:
    sentence = refused("owner/model")
    assert (
        "nothing is fetched unasked: add --fetch, or run `hf download owner/model`" in sentence
        and str(cache) in sentence
    )


def test_a_hub_id_that_cannot_be_fetched(cache: Path) -> None:
    assert "expected a repository that can be fetched, got 'owner/model'" in refused("owner/model", "--fetch")


def test_a_hub_id_in_the_cache_is_found_and_nothing_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = cached(cache, "owner/model")
    tiny("llama").config.save_pretrained(snapshot)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.socket", None)  # any use would be an error
    found = find_model("owner/model")
    assert (found.folder, found.name, found.has_weights) == (snapshot, "owner/model", False)
    assert "hf download owner/model" in CliRunner().invoke(app, ["check", "owner/model"]).stdout


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    assert "expected config.json of a model or model_index.json of a pipeline, got nothing" in refused(str(tmp_path))
    (tmp_path / "picture.png").write_text("x")
    assert "got picture.png" in refused(str(tmp_path))
    assert "expected JSON" in refused(str(tmp_path / "picture.png"))
    make("msd").save_pretrained(tmp_path)
    assert "of kind msd; check its target, with --drafter" in refused(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"speculators_model_type": "dflash"}))
    assert "of kind dflash" in refused(str(tmp_path))


def test_configs_that_are_no_model_for_text(tmp_path: Path) -> None:
    hf.ViTConfig().save_pretrained(tmp_path)
    assert "expected a model that writes text or draws, got a ViTConfig" in refused(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    assert "no-such-model" in refused(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"space": 3}))
    assert "with its model_type, got" in refused(str(tmp_path / "config.json"))


def test_damaged_weights(tmp_path: Path) -> None:
    assert "got no model.layers.1.mlp.up_proj.weight" in refused(without_tensor(tmp_path))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "may be cut off" in refused(str(tmp_path))
    (tmp_path / "model_index.json").write_text("{")
    assert "model_index.json: expected JSON" in refused(str(tmp_path))


def test_pickles_are_named_and_not_loaded(tmp_path: Path) -> None:
    tiny("llama").config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    found = find_model(str(tmp_path))
    assert not found.has_weights and "pickles (pytorch_model.bin), which are never loaded" in found.note


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--tokens", "0", "expected a number of at least 1, got 0"),
        ("--device", "tpu", "expected one of auto, cpu, cuda or cuda:N, got 'tpu'"),
        ("--drafter", "magic", "magic"),
        ("--json", "no/such/out.json", "expected an existing folder"),
    ],
)
def test_a_refused_option(option: str, value: str, sentence: str, tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path / "llama")
    assert sentence in refused(str(tmp_path / "llama"), option, value)


def test_a_published_drafter_in_the_cache_is_here(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.vlm.drafters import published

    row = published.PublishedDrafter("tiny/msd", "tiny/target", "msd", "mit", "10K")
    monkeypatch.setattr(published, "PUBLISHED", (row,))
    folder = tmp_path / "target"
    tiny("llava").save_pretrained(folder)
    said = " ".join(CliRunner().invoke(app, ["check", str(folder)]).stdout.split())
    assert "tiny/msd: msd, 10K parameters, mit, layout assumed; not here; fetch it with `hf download tiny/msd`" in said
    assert said.count("hf download tiny/msd") == 2 and "drafter prompt_lookup" in said
    make("msd").save_pretrained(cached(cache, "tiny/msd"))
    said = " ".join(CliRunner().invoke(app, ["check", str(folder)]).stdout.split())
    assert (
        "here: tiny/msd, msd, 10K parameters, mit, layout assumed; in the cache" in said
        and "identical: 32 tokens; drafter msd" in said
    )
    assert "hf download" not in said
