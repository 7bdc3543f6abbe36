"""A damaged drafter is one sentence that names its file, whatever is wrong with it, and never a traceback or a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.vlm import load_drafter
from mmspec.vlm.drafters.specdecpp import AcceptanceConfig, AcceptanceHead
from tests.damaged import ABSURD, CONFIG, FILES, NUMBERS, WEIGHTS, WRONG, loads_or_refuses, other_fields, refused
from tests.evaluate.tiny_zoo import tiny_zoo, use_tiny_zoo
from tests.vlm.drafters.trained import DRAFTERS, make

ALL = [*DRAFTERS, "specdecpp"]


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    name = request.param
    drafter = AcceptanceHead(AcceptanceConfig(8)) if name == "specdecpp" else make(name)
    drafter.save_pretrained(tmp_path / "drafter")
    return tmp_path / "drafter"


@pytest.mark.parametrize("folder", ALL, indirect=True)
def test_every_kind_comes_back_as_it_was_saved(folder: Path) -> None:
    loaded, stored = load_drafter(folder).state_dict(), load_file(folder / WEIGHTS)
    assert loaded.keys() == stored.keys() and all(torch.equal(loaded[name], stored[name]) for name in stored)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("damage", [*FILES, *NUMBERS])
@pytest.mark.parametrize("folder", ["eagle", "eagle3", "flash", "hydra", "specdecpp"], indirect=True)
def test_a_damaged_file_reports_one_error(damage: str, folder: Path) -> None:
    (FILES | NUMBERS)[damage](folder)
    line = refused(load_drafter, folder)
    assert damage not in NUMBERS or "expected finite weights, got NaN or Inf in " in line


@pytest.mark.default_cells("eagle3", "specdecpp")
@pytest.mark.parametrize("folder", ALL, indirect=True)
def test_a_field_of_another_type_is_refused(folder: Path) -> None:
    for _ in other_fields(folder, WRONG):
        refused(load_drafter, folder)


@pytest.mark.default_cells("eagle3", "specdecpp")
@pytest.mark.parametrize("folder", ALL, indirect=True)
def test_an_absurd_size_is_refused_or_matters_to_no_weight(folder: Path) -> None:
    sizes = {"hidden_size", "heads", "num_layers", "layers"}
    if load_drafter(folder).name == "clover":  # whose levels share their weights
        sizes -= {"heads"}
    for name, _ in other_fields(folder, ABSURD):
        if name in sizes:
            refused(load_drafter, folder)
        else:
            loads_or_refuses(load_drafter, folder)


@pytest.mark.parametrize("folder", ["eagle3"], indirect=True)
@pytest.mark.parametrize("ids", [10**6, -5, 0])
def test_tokens_outside_the_vocabulary_are_refused(ids: int, folder: Path) -> None:
    state = load_file(folder / WEIGHTS)
    state["head.d2t"][-1] = ids
    save_file(state, folder / WEIGHTS)
    assert "expected rising ids" in refused(load_drafter, folder)


@pytest.mark.parametrize("damage", ["truncated", "garbage", "another shape", "config b'[1]'", "all nan"])
def test_on_the_command_line_too(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)
    folder, picture = tmp_path / "drafter", tmp_path / "a.png"
    tiny_zoo()["vlm/eagle"].save_pretrained(folder)
    (FILES | NUMBERS)[damage](folder)
    Image.new("RGB", (16, 16), "navy").save(picture)
    for status, *command in (
        (2, "caption", str(picture), "--drafter", str(folder)),
        (1, "train", "vlm-drafter", "--kind", "eagle2", "--start", str(folder), "--out", str(tmp_path / "out")),
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == status and isinstance(result.exception, SystemExit), result.exception
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: ") and str(folder) in line and not result.stdout


def test_an_absurd_size_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)
    folder, picture = tmp_path / "drafter", tmp_path / "a.png"
    tiny_zoo()["vlm/eagle"].save_pretrained(folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, "hidden_size": 10**9}))
    Image.new("RGB", (16, 16), "navy").save(picture)
    result = CliRunner().invoke(app, ["caption", str(picture), "--drafter", str(folder)])
    assert result.exit_code == 2 and str(folder) in result.stderr and isinstance(result.exception, SystemExit)
