"""Models and drafters from folders, and what `zoo build` hands to the builders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from mmspec.cli import app
from tests.evaluate.tiny_zoo import tiny_zoo, use_tiny_zoo

runner = CliRunner()


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "picture.webp"
    Image.new("RGB", (16, 16), "navy").save(path)
    return str(path)


def test_a_model_saved_in_a_folder(picture: str, tmp_path: Path) -> None:
    model, processor = tiny_zoo()["vlm"]
    folder, out = tmp_path / "model", tmp_path / "out.json"
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    common = ("caption", picture, "--model", str(folder), "--max-new-tokens", "6")
    result = runner.invoke(app, [*common, "--json", str(out)])
    assert result.exit_code == 0, result.stderr
    record = json.loads(out.read_text())
    assert record["drafter"] == "auto" and record["model"].startswith(str(folder))
    result = runner.invoke(app, [*common, "--drafter", "eagle"])
    assert result.exit_code == 2 and "expected the zoo's model" in result.stderr


def test_a_drafter_saved_in_a_folder(picture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)
    tiny_zoo()["vlm/eagle"].save_pretrained(tmp_path / "drafter")
    result = runner.invoke(app, ["caption", picture, "--drafter", str(tmp_path / "drafter"), "--max-new-tokens", "4"])
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(("flags", "resume"), [((), True), (("--fresh",), False)])
def test_zoo_build_trains_the_named_recipe(
    flags: tuple[str, ...], resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def build(out, work, recipe, *, resume, device, measure):
        seen.append((recipe.name, out, work, resume, device, callable(measure)))
        return {"evaluation": {"objects_right": 0.9}}

    monkeypatch.setattr("mmspec.zoo.training.vlm.build_vlm.build", build)
    out, work = tmp_path / "out", tmp_path / "work"
    result = runner.invoke(app, ["zoo", "build", "vlm/small", "--out", str(out), "--work", str(work), *flags])
    assert result.exit_code == 0, result.stderr
    assert seen == [("vlm/small", out, work, resume, "cpu", True)]
    assert "objects_right: 0.9" in result.stdout


def test_a_model_with_a_missing_weight_is_refused(picture: str, tmp_path: Path) -> None:
    model, processor = tiny_zoo()["vlm"]
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    gone = next(name for name in state if name.endswith("layers.1.self_attn.v_proj.weight") and "vision" not in name)
    del state[gone]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    result = runner.invoke(app, ["caption", picture, "--model", str(folder)])
    assert result.exit_code == 2 and not result.stdout
    (line,) = result.stderr.splitlines()
    assert "got no model.language_model.layers.1.self_attn.v_proj.weight, which would be random" in line
