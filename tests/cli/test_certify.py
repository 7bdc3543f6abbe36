"""`mmspec certify`: verdicts, exit codes, files, and one sentence for every step that cannot be examined."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.progress import Progress, TimeRemainingColumn
from typer.testing import CliRunner, Result

from mmspec.certify.certificate import Certificate
from mmspec.certify.step import StepFailed
from mmspec.certify.subprocess_child import main
from mmspec.certify.subprocess_run import certify_in_subprocess
from mmspec.cli import app

STEPS = """
import os, time
import torch

def accepts_nothing(tokens, p, uniforms):
    print("hello from the step")
    following = (p[:, 0].cumsum(-1) <= uniforms[:, -1:] * p[:, 0].sum(-1, keepdim=True)).sum(-1)
    return torch.zeros(len(tokens), dtype=torch.int64), following

def accepts_everything(tokens, p, uniforms):
    return torch.full((len(tokens),), tokens.shape[1]), (p[:, -1].cumsum(-1) <= uniforms[:, -1:] * 0.999999).sum(-1)

def hangs(tokens):
    time.sleep(600)

def crashes(tokens):
    os._exit(7)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `engine` in the present folder, which is no package of ours."""
    (tmp_path / "engine.py").write_text(STEPS)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no GPU here')")
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["certify", *arguments])


@pytest.mark.usefixtures("engine")
def test_an_exact_step_exits_with_0_and_its_output_is_not_mistaken_for_ours() -> None:
    result = run("engine:accepts_nothing", "--json", "out.json")
    assert result.exit_code == 0, result.output
    (verdict,) = (line for line in result.output.splitlines() if line.startswith("exact"))
    assert "islands of more than 0.00046" in verdict and "6 pairs of laws" in result.output
    found = json.loads(Path("out.json").read_text())
    assert found["exact"] and found["method"] == "regions" and found["step"] == "engine:accepts_nothing"
    assert len(found["cases"]) == 6 and all(case["passed"] and case["regions"] for case in found["cases"])
    assert all(case["probes"] >= 10_000 and case["island"] < 0.0005 for case in found["cases"])


@pytest.mark.usefixtures("engine")
def test_another_step_ends_with_1_its_distance_and_its_name() -> None:
    result = run("engine:accepts_everything", "--tree", "0")
    assert result.exit_code == 1
    assert "not exact: a distance of" in result.output and 'behaves like "always accepts"' in result.output


@pytest.mark.usefixtures("engine")
def test_a_step_that_hangs_is_stopped() -> None:
    result = run("engine:hangs", "--limit", "1")
    assert result.exit_code == 1
    assert result.output.strip().splitlines() == [
        "Error: step: expected a case within 1 s, got none; it hangs, or give it more time with --limit"
    ]


@pytest.mark.usefixtures("engine")
def test_a_step_that_takes_its_process_down_is_a_sentence() -> None:
    with pytest.raises(StepFailed, match="got a process that ended with code 7"):
        certify_in_subprocess("engine:crashes")


@pytest.mark.usefixtures("engine")
def test_the_bar_knows_the_number_of_cases_and_so_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = []

    @contextmanager
    def kept() -> Iterator[Progress]:
        bars.append(Progress(TimeRemainingColumn(), disable=True))
        yield bars[0]

    monkeypatch.setattr(sys.modules["mmspec.cli.certify"], "progress", kept)
    assert run("engine:accepts_nothing", "--probes", "100").exit_code == 0
    (task,) = bars[0].tasks
    assert (task.completed, task.total) == (6, 6)


def said(order: dict, tmp_path: Path) -> list[dict]:
    """What the child says to an order."""
    with open(tmp_path / "said.jsonl", "w+") as out:
        main(json.dumps({"shapes": None, "values": 3, "samples": 1000, "arrays": "torch", **order}), out)
        out.seek(0)
        return [json.loads(line) for line in out]


def test_the_child_tells_every_case_and_then_the_certificate(tmp_path: Path) -> None:
    lines = said({"step": "tests.certify.planted:right", "shapes": [[[0], "without_replacement"]]}, tmp_path)
    assert [next(iter(line)) for line in lines] == ["ready", "cases", *["case"] * 6, "certificate"]
    assert lines[1] == {"cases": 6}
    assert lines[-1]["certificate"]["exact"] and lines[2]["case"] == lines[-1]["certificate"]["cases"][0]
    assert Certificate(**lines[-1]["certificate"]).behaves_like is None


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        ("broken:step", "expected a module that can be imported, got 'broken' (RuntimeError: no GPU here)"),
        ("nowhere:step", "got 'nowhere' (ModuleNotFoundError"),
        ("json:loads", "expected arguments among tokens"),
        ("json", "expected MODULE:CALLABLE, got 'json'"),
    ],
)
def test_an_unsuitable_step_reports_one_error(
    step: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    *_, last = said({"step": step}, tmp_path)
    assert sentence in last["error"] and "\n" not in last["error"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--tree", "1,0"], "parents: expected the number of an earlier token"),
        (["--tree", "a"], "--tree: expected numbers"),
        (["--drawn", "somehow"], "--drawn: expected"),
        (["--arrays", "jax"], "--arrays: expected torch or numpy"),
        (["--values", "1"], "--values: expected"),
        (["--limit", "0"], "--limit: expected"),
        (["--samples", "3"], "--samples: expected"),
        (["--probes", "3"], "--probes: expected"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(options: list[str], sentence: str) -> None:
    result = run("tests.certify.planted:right", *options)
    assert result.exit_code == 2 and sentence in result.output


def test_the_help_says_that_code_runs() -> None:
    assert "code runs" in " ".join(run("--help").output.replace("│", " ").split())
