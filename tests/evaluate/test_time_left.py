"""The progress of benches and sweeps estimates the remaining time."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mmspec.cli import console
from mmspec.cli.console import progress, step_progress, time_left


def test_estimates_are_minutes_or_hours_and_silent_below_a_minute() -> None:
    assert time_left(5, 11.0) == "" and time_left(0, 500.0) == ""
    assert time_left(10, 12.0) == "; about 2 min left"
    assert time_left(100, 90.0) == "; about 2.5 h left"


def test_a_log_line_estimates_from_requests_that_were_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(console, "monotonic", lambda: now[0])
    with step_progress("bench", 20, 2) as (on_run, on_part):
        for _ in range(5):
            on_run("stored")  # read from a log within no time
        for _ in range(5):
            now[0] += 30.0
            on_run("run")
        on_part("first setting: 150.0 s")
    lines = capsys.readouterr().err.splitlines()
    assert "  7 of 20 requests: run; about 6 min left" in lines
    assert lines[-1] == "1 of 2: first setting: 150.0 s; about 5 min left"


def test_a_bar_estimates_from_steps_that_take_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(console, "screen", lambda stderr=False: screen)
    now = [0.0]
    with progress() as bar:
        bar.get_time = lambda: now[0]
        task = bar.add_task("bench", total=10)
        for _ in range(3):
            now[0] += 120.0
            bar.update(task, advance=1)
        assert bar.tasks[0].time_remaining == pytest.approx(7 * 120, rel=0.5)
