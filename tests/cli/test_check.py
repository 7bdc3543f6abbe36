"""`mmspec check` as a command: its options, its file and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.cli import app
from tests.check.folders import of_class
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import tiny


def shown(*arguments: str, code: int = 0) -> str:
    """What the command prints, with single spaces."""
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return " ".join(result.stdout.split())


def test_a_custom_drafter_is_compared(tmp_path: Path) -> None:
    tiny("llava").save_pretrained(tmp_path / "model")
    make("msd").save_pretrained(tmp_path / "drafter")
    said = shown(str(tmp_path / "model"), "--drafter", f"msd@{tmp_path / 'drafter'}", "--tokens", "12")
    assert "identical: 12 tokens; drafter msd" in said and f"--drafter msd@{tmp_path / 'drafter'}" in said


def test_the_config_alone_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny("llama").save_pretrained(tmp_path)
    monkeypatch.setattr("mmspec.check.examine.load_model", None)  # any use would be an error
    said = shown(str(tmp_path), "--config", "--json", str(tmp_path / "report.json"))
    assert "strict: ?" in said and "comparison" not in said and "no weights" not in said
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["taken"] is True and saved["loaded"] is False and saved["memory"]["per_token"] == 256
    assert {one["name"] for one in saved["drafters"]} >= {"lookup", "eagle", "dspark"}
    assert shown(str(tmp_path / "config.json")).count("Only the config was named.") == 1


def test_weights_that_have_no_room_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny("llama").save_pretrained(tmp_path)
    monkeypatch.setattr("mmspec.check.examine.room_of", lambda device: 1000)
    monkeypatch.setattr("mmspec.check.examine.load_model", None)  # any use would be an error
    assert "The weights take 87.9 kB, and there is room for 1 kB on cpu; they are not loaded." in shown(str(tmp_path))


@pytest.mark.whole
def test_an_image_model_of_transformers(tmp_path: Path) -> None:
    of_class("JanusForConditionalGeneration")(tmp_path)
    said = shown(str(tmp_path))
    assert "mmspec image draws with this class" in said and "its text is refused: expected drafted passes" in said
    assert f'mmspec image "PROMPT" --model {tmp_path}' in said and "scd, exact" in said and "2 full" in said


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("HeliosPipeline", 0, "mmspec.video.from_diffusers"),
        ("StableDiffusionPipeline", 1, "refused: expected a pipeline of"),
    ],
)
def test_pipelines_of_others(name: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": name}))
    assert said in shown(str(tmp_path), code=code)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["check", "zoo:vlm", "--device", "cuda"])
    assert result.exit_code == 2 and "--device: expected an available cuda device, got 'cuda'" in result.stderr
