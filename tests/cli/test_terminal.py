"""Output for people at a terminal: captions that grow in colour, and bars."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app
from tests.evaluate.tiny_zoo import use_tiny_zoo

TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
GREEN = "\x1b[32m"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)
    monkeypatch.chdir(tmp_path)


def letters(text: str) -> str:
    """The text without spaces and control characters, which a screen changes."""
    return re.sub(r"[^!-~]", "", text)


def run(*words: str, environment: dict[str, str]) -> str:
    result = CliRunner().invoke(app, list(words), env=environment)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result.stdout


def test_the_demo_shows_accepted_tokens_in_colour_and_the_same_figures() -> None:
    words = ("demo", "--max-new-tokens", "12", "--json", "out.json")
    live = run(*words, environment=TERMINAL)
    record = json.loads(Path("out.json").read_text())
    plain = run(*words, environment={})
    assert record.keys() == json.loads(Path("out.json").read_text()).keys()
    assert GREEN in live and "accepted draft tokens" in live and "Next: mmspec caption" in live
    assert "\x1b" not in plain and "Next" not in plain and "accepted draft tokens" not in plain
    bare = re.sub(r"\x1b\[[0-9;]*m", "", live)
    assert all(letters(scene["text"]) in letters(bare) for scene in record["scenes"])
    assert bare.count("identical: yes") == 3 and "3 of 3 texts identical" in bare


@pytest.mark.parametrize("environment", [{"FORCE_COLOR": "1", "TERM": "dumb"}, TERMINAL | {"NO_COLOR": "1"}])
def test_a_terminal_without_colours_gets_the_plain_demo(environment: dict[str, str]) -> None:
    assert "\x1b[32m" not in run("demo", "--max-new-tokens", "2", environment=environment)


def test_a_caption_on_a_terminal_counts_its_tokens_on_stderr() -> None:
    Image.effect_noise((24, 24), 60).convert("RGB").save("a.png")
    result = CliRunner().invoke(app, ["caption", "a.png", "--max-new-tokens", "6"], env=TERMINAL)
    assert result.exit_code == 0 and "tokens, at most" in result.stderr and "6/6" in result.stderr
