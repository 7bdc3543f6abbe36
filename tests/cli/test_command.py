"""A function as a command: options and help texts are read off its signature and its docstring."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.cli.command import LateHelp, command, documented

KINDS = ("red", "blue")


@command(kinds=lambda: ", ".join(KINDS))
def paint(
    thing: str, *, kind: str = "red", sides: int | None = None, small: bool = False, json: Path | None = None
) -> None:
    """Paint a thing.

    More of it.

    Args:
        thing (THING): The thing.
        kind: One of {kinds}; of a long
            line.
        sides (N): How many.
        small (--tiny): A small one.
    """
    if sides == 0:
        raise ValueError("sides: expected some, got 0")
    typer.echo(f"{thing} {kind} {sides} {small} {json}")


TOY = typer.Typer(add_completion=False)
TOY.command(cls=LateHelp)(paint)


def invoke(*words: str):
    return CliRunner().invoke(TOY, list(words))


def test_keywords_are_options_and_the_docstring_is_their_help() -> None:
    found = {one.name: one for one in get_command(TOY).params}
    assert [one.param_type_name for one in found.values()] == ["argument", *["option"] * 4]
    assert found["thing"].metavar == "THING" and found["sides"].metavar == "N" and found["kind"].metavar is None
    assert found["small"].opts == ["--tiny"]
    assert found["json"].help == "Also write the figures to this file." and found["json"].metavar == "FILE"
    assert get_command(TOY).help == "Paint a thing.\n\nMore of it."


def test_a_help_text_is_completed_when_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "One of red, blue; of a long line." in invoke("--help").stdout
    monkeypatch.setitem(globals(), "KINDS", ("green",))
    assert "One of green; of a long line." in invoke("--help").stdout


def test_a_command_runs_with_its_options_and_ends_in_one_sentence() -> None:
    assert invoke("ball", "--kind", "blue", "--sides", "3", "--tiny").stdout == "ball blue 3 True None\n"
    refused = invoke("ball", "--sides", "0")
    assert refused.exit_code == 1 and refused.stderr == "Error: sides: expected some, got 0\n"


def test_a_docstring_without_arguments_is_its_text() -> None:
    assert documented("Only text.") == ("Only text.", {}) and documented(None) == ("", {})


def commands(command, path: tuple[str, ...] = ()):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.mark.parametrize(("path", "found"), list(commands(get_command(app))), ids=lambda one: str(one)[:40])
def test_every_option_of_every_command_has_a_help_text(path: tuple[str, ...], found) -> None:
    assert [one.name for one in found.params if not one.help and one.name != "help"] == []
