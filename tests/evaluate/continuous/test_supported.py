"""What `mmspec supported` says of models of continuous tokens is what they say of their own output."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.imagegen import Annealing, HeadSampling, Lazy, ScheduledSteps
from mmspec.run.supported_decodings import continuous_records
from tests.evaluate.tiny_continuous import masked, use_tiny_continuous

NAMES = {"MARPipeline": "mar", "ContinuousARPipeline": "car"}
RECORDS = continuous_records()


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: one["asked by"])
def test_a_draw_has_the_stated_distribution(record: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_tiny_continuous(monkeypatch)
    monkeypatch.chdir(tmp_path)
    asked, names = record["asked by"], {one.__name__: one for one in (Annealing, HeadSampling, Lazy, ScheduledSteps)}
    if asked.startswith("--"):
        words = ("--model", NAMES[record["model of vectors"]], *shlex.split(asked), "--json", "out.json")
        result = CliRunner().invoke(app, ["image", "3", "--seed", "0", *words])
        assert result.exit_code == 0, result.stderr
        exact = json.loads(Path("out.json").read_text())["exact"]
    else:
        made = eval(asked.replace("Annealing()", "Annealing(4, 2)"), names)
        decoding = ScheduledSteps(head_sampling=made) if isinstance(made, HeadSampling) else made
        exact = masked()([3], decoding=decoding, seed=0, pixels=False).stats.exact
    assert record["law"] == ("exact" if exact else "relaxed")


def test_both_kinds_are_listed_once_each_with_a_test() -> None:
    keys = [(record["model of vectors"], record["asked by"]) for record in RECORDS]
    assert len(set(keys)) == len(keys) and {kind for kind, _ in keys} == set(NAMES)
    assert all(record["tested by"] for record in RECORDS)


def test_the_command_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["supported", "--all", "--json", "out.json"])
    assert result.exit_code == 0 and "checkerboard" in result.stdout
    assert json.loads(Path("out.json").read_text())["models of vectors"] == RECORDS
