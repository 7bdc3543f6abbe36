"""The commands and the Python that the documents show draw what they say, as the zoo's judge sees it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import mmspec
from mmspec.cli import app
from mmspec.cli.image import SHEET_GAP
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE, class_names

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "images.md"
COMMANDS = re.findall(r'^mmspec image ("[^[\n]*)$', PAGE.read_text(encoding="utf-8"), re.M)


def right(pictures: list[Image.Image], asked: list[str]) -> bool:
    return mmspec.zoo.load("image_judge").agreement(pictures, asked) == 1


def cut(sheet: Image.Image) -> list[Image.Image]:
    """The pictures of a sheet, row by row."""
    step = IMAGE_SCENE_SIDE + SHEET_GAP
    corners = [(x, y) for y in range(0, sheet.height, step) for x in range(0, sheet.width, step)]
    return [sheet.crop((x, y, x + IMAGE_SCENE_SIDE, y + IMAGE_SCENE_SIDE)) for x, y in corners]


@pytest.mark.parametrize(
    "command", [COMMANDS[0], *(pytest.param(command, marks=pytest.mark.whole) for command in COMMANDS[1:])]
)
def test_a_documented_command_draws_its_prompt(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--seed" in command
    result = CliRunner().invoke(app, ["image", *shlex.split(command), "--json", "out.json"])
    assert result.exit_code == 0, result.stderr
    record = json.loads(Path("out.json").read_text())
    asked = [class_names()[int(text)] if text.isdigit() else text for text in record["prompts"]]
    assert right(cut(Image.open(record["out"]))[: len(asked)], asked)


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) == 4


@pytest.mark.whole
def test_the_documented_python_draws_its_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S):
        exec(block, names)
    assert right(names["out"].images, ["a red circle", "a blue square"])
    assert right(names["relaxed"].images, ["a red circle"])


def test_the_readme_example_draws_a_star(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    (block,) = (block for block in blocks if "star.png" in block)
    exec("import mmspec\n" + block, {})
    assert right([Image.open("star.png")], ["a large red star"])
