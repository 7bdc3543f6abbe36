"""A function as a command: options and help texts are read off its signature and its docstring."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.cli.command import CommandHelp, LateHelp, command, documented

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
        small (--tiny): A small thing.

    Examples:
        # a ball
        paint ball --kind "{kinds}" [a]
    """
    if sides == 0:
        raise ValueError("sides: expected some, got 0")
    typer.echo(f"{thing} {kind} {sides} {small} {json}")


TOY = typer.Typer(add_completion=False)
TOY.command(cls=LateHelp)(paint)


def invoke(*words: str):
    return CliRunner().invoke(TOY, list(words))


def test_keywords_are_options_and_the_docstring_is_their_help() -> None:
    found = {param.name: param for param in get_command(TOY).params}
    assert [entry.param_type_name for entry in found.values()] == ["argument", *["option"] * 4]
    assert found["thing"].metavar == "THING" and found["sides"].metavar == "N" and found["kind"].metavar is None
    assert found["small"].opts == ["--tiny"]
    assert found["json"].help == "Also write the figures to this JSON file." and found["json"].metavar == "FILE"
    assert get_command(TOY).help == "Paint a thing.\n\nMore of it."


def test_a_help_text_is_completed_when_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "One of red, blue; of a long line." in invoke("--help").stdout
    monkeypatch.setitem(globals(), "KINDS", ("green",))
    assert "One of green; of a long line." in invoke("--help").stdout


def test_a_command_runs_with_its_options_and_reports_one_error() -> None:
    assert invoke("ball", "--kind", "blue", "--sides", "3", "--tiny").stdout == "ball blue 3 True None\n"
    refused = invoke("ball", "--sides", "0")
    assert refused.exit_code == 1 and refused.stderr == "Error: sides: expected some, got 0\n"


def test_examples_end_the_help_as_they_were_written() -> None:
    assert invoke("--help").stdout.rstrip().splitlines()[-3:] == [
        " Examples:",
        "   # a ball",
        '   paint ball --kind "{kinds}" [a]',
    ]


def test_a_docstring_without_arguments_is_its_text() -> None:
    assert documented("Only text.") == CommandHelp("Only text.") and documented(None) == CommandHelp("")
    assert documented("Text.\n\nExamples:\n    paint").examples == ("paint",)


def commands(command, path: tuple[str, ...] = ()):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.mark.parametrize(("path", "found"), list(commands(get_command(app))), ids=lambda one: str(one)[:40])
def test_every_option_of_every_command_has_a_help_text(path: tuple[str, ...], found) -> None:
    assert [param.name for param in found.params if not param.help and param.name != "help"] == []


VERBS = {
    "Caption", "Compare", "Convert", "Describe", "Draw", "Estimate", "Fetch", "List", "Look", "Remove", "Run", "Serve", "Show",
    "Test", "Time", "Train", "Write",
}  # fmt: skip
NAMED = list(commands(get_command(app)))


@pytest.mark.parametrize(
    ("path", "found"),
    [pair for pair in NAMED if pair[0] and not hasattr(pair[1], "commands")],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_help_texts_begin_with_a_verb_and_options_with_a_capital(path: tuple[str, ...], found) -> None:
    assert found.help.split()[0] in VERBS
    for param in found.params if path[0] != "bench" else ():  # options of benches are fields of their configs
        if param.name != "help":
            assert (param.help[0].isupper() or param.help[0].isdigit() or param.help.startswith(("bf16", "{"))) and (
                param.help.rstrip()[-1] in ".)}"
            ), param.name


def examples_of(found) -> tuple[str, ...]:
    own = getattr(found.callback, "examples", None)
    return documented(found.callback.__doc__).examples if own is None else own


@pytest.mark.parametrize(("path", "found"), list(commands(get_command(app))), ids=lambda one: str(one)[:40])
def test_every_help_text_ends_with_examples_that_can_be_typed(path: tuple[str, ...], found) -> None:
    examples = examples_of(found)
    assert 1 <= len(examples) <= 4
    for line in examples:
        program, *words = shlex.split(line)
        assert program == "mmspec" and len(line) <= 96, line
        target, names = get_command(app), []
        while hasattr(target, "commands"):
            names.append(words.pop(0))
            target = target.commands[names[-1]]
        target.make_context(" ".join(names), words)  # raises for an unknown option or a missing argument


def test_the_command_alone_names_three_things_to_try() -> None:
    alone = CliRunner().invoke(app, [])
    lines = alone.stdout.splitlines()
    assert alone.exit_code == 0 and sum(line.startswith("  mmspec ") for line in lines) == 3 and len(lines) < 10
    assert "mmspec --help" in lines[-1]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_next_step_is_printed_for_people_alone(is_terminal: bool, tmp_path: Path) -> None:
    environment = {"FORCE_COLOR": "1", "TERM": "xterm"} if is_terminal else {}
    words = ["zoo", "scene", "--out", str(tmp_path / "a.png"), "--json", str(tmp_path / "a.json")]
    shown = CliRunner().invoke(app, words, env=environment)
    assert ("Next: mmspec caption" in shown.stdout) == is_terminal and shown.exit_code == 0
    assert "Next" not in (tmp_path / "a.json").read_text()
