"""`mmspec zoo scene`: an example picture for every other command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app


def run(code: int, *words: str) -> str:
    result = CliRunner().invoke(app, ["zoo", "scene", *words])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_scene_of_a_seed_is_always_the_same_picture() -> None:
    said = run(0, "--seed", "3", "--out", "a.png", "--json", "a.json")
    run(0, "--seed", "3", "--out", "b.png")
    run(0, "--out", "c.png")
    first, again, other = (Path(f"{name}.png").read_bytes() for name in "abc")
    assert first == again != other and Image.open("a.png").size == (96, 96)
    record = json.loads(Path("a.json").read_text())
    assert len(record["objects"]) >= 5 and all(name in said for name in record["objects"]) and record["out"] == "a.png"


def test_it_can_be_captioned(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.evaluate.tiny_zoo import use_tiny_zoo

    use_tiny_zoo(monkeypatch)
    run(0)
    result = CliRunner().invoke(app, ["caption", "scene.png", "--max-new-tokens", "4"])
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--out", "a.jpg"), "--out: expected a file that ends in .png, got 'a.jpg'"),
        (("--seed", "10000"), "--seed: expected 0 to 9999, got 10000"),
        (("--out", "no/folder/a.png"), "expected an existing folder"),
    ],
)
def test_a_wrong_option_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in run(2, *words) and list(Path().iterdir()) == []
