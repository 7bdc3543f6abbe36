"""Ctrl-C on the command line: a sentence and status 130, wherever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.cli.console import reports_errors, screen
from mmspec.io.interrupts import Stopped, end_before_work

runner = CliRunner()


def ended(raised: BaseException, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    """Exit code and stderr of a command that this is raised in."""

    def interrupted() -> None:
        raise raised

    one = typer.Typer()
    one.command()(reports_errors(interrupted))
    monkeypatch.setattr("sys.argv", ["mmspec", *words])
    result = runner.invoke(one, [])
    return result.exit_code, result.stderr


def test_an_interrupt_reports_which_files_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = ended(KeyboardInterrupt(), monkeypatch)
    assert (code, said) == (130, "Stopped: files already written are whole, nothing else is kept\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_can_go_on_says_how(number: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("zoo", "build", "vlm", "--fresh", "--out", "a folder")
    said = "Stopped: step 3 is kept in x; go on with: mmspec zoo build vlm --out 'a folder'\n"
    assert ended(Stopped("step 3 is kept in x", number), monkeypatch, *words) == (code, said)


def test_a_launched_run_is_launched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    _, said = ended(Stopped("step 3 is kept in x"), monkeypatch, "train", "vlm-drafter")
    assert said.endswith("go on with: accelerate launch ... mmspec train vlm-drafter\n")


def commands(of: typer.Typer) -> list:
    """All commands below an app."""
    return [command.callback for command in of.registered_commands] + [
        command for group in of.registered_groups for command in commands(group.typer_instance)
    ]


def test_every_command_handles_interrupts() -> None:
    found = commands(app)
    assert len(found) > 8
    assert [
        command.__name__ for command in found if command.__code__ is not reports_errors(lambda: None).__code__
    ] == []


def test_before_a_command_begins() -> None:
    code = (
        "import signal; from mmspec.io.interrupts import end_before_work as end; signal.signal(signal.SIGINT, end); "
        "signal.raise_signal(signal.SIGINT)"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (130, "Stopped: no work had begun\n")


def test_the_entry_point_ends_at_once_until_a_command_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec import __main__

    seen = []
    one = typer.Typer()
    one.command()(reports_errors(lambda: seen.append(signal.getsignal(signal.SIGINT))))
    monkeypatch.setattr("sys.argv", ["mmspec"])
    monkeypatch.setattr("mmspec.cli.app", lambda: seen.append(signal.getsignal(signal.SIGINT)) or one())
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            __main__.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [end_before_work, signal.default_int_handler]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full disk to write to")
def test_a_screen_that_takes_no_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full, pytest.raises(OSError, match="^expected to write '/dev/full', got 'No space"):
        monkeypatch.setattr("sys.stdout", full)
        try:
            screen().print("hello")
        finally:
            monkeypatch.undo()
            os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what is left must go somewhere
