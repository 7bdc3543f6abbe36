"""The rows of the page on benches: `mmspec bench image` measures them beside plain decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.evaluate.image.suites import SUITES
from tests.docs.examples import imported
from tests.evaluate.tiny_images import use_tiny_images

SMALL = ("--prompts", "2", "--batch", "1", "--guidance", "3", "--top-k", "0", "--temperature", "1", "--threads", "1")


def test_the_suite_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_images(monkeypatch)
    monkeypatch.setitem(SUITES, "eager", None)  # taken out again after the test
    imported(monkeypatch, "bench_row")
    file = tmp_path / "rows.json"
    result = CliRunner().invoke(app, ["bench", "image", "--suite", "eager", *SMALL, "--json", str(file)])
    assert result.exit_code == 0, (result.output, result.exception)
    rows = {row["key"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["ar", "eager-1.0", "eager-1.5", "eager-2.0"]
    assert [row["exact"] for row in rows.values()] == [True, False, False, False]
    passes = [row["target_passes"] for row in rows.values()]
    assert passes[0] > passes[1] >= passes[3]  # a larger factor accepts more
