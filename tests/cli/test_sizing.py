"""`mmspec bench sizing`: the fit of finished benches with its intervals, and the fastest size among those within reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.cli import app
from tests.evaluate.test_sizing import bench_rows


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"env": {}, "rows": bench_rows()}))
    return file


def run(*arguments: object) -> object:
    return CliRunner().invoke(app, ["bench", "sizing", *map(str, arguments)])


def test_the_fit_and_the_fastest_size(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit.json"
    result = run(bench, "--json", out)
    assert result.exit_code == 0, result.stderr
    record = json.loads(out.read_text())
    assert record["drafters"] == 25 and record["training_seconds"] == 1e10
    for name, truth in (("base", -5.0), ("by_data", 0.2), ("by_size", 0.3)):
        assert record["fit"][name] == pytest.approx(truth)
        assert record["intervals"][name] == pytest.approx([truth, truth], rel=1e-6)
    sizes = [entry["parameters"] for entry in record["sizes"]]
    assert min(sizes) == 2.5e5 and max(sizes) == 1.2e8
    best = max(record["sizes"], key=lambda entry: entry["tokens_per_second"])
    assert record["fastest"] == best["parameters"] and "fastest size" in result.stdout
    expected = best["accept_length"] / (0.012 + 2e-9 * best["parameters"])
    assert best["tokens_per_second"] == pytest.approx(expected)
    assert min(sizes) < record["fastest"] < max(sizes)


def test_methods_and_settings_choose_the_rows(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit.json"
    named = "eagle-1000000,eagle-5000000"
    assert run(bench, bench, "--methods", named, "--sizes", "2e6,3e6", "--json", out).exit_code == 0
    record = json.loads(out.read_text())
    assert record["drafters"] == 20 and [entry["parameters"] for entry in record["sizes"]] == [2e6, 3e6]
    refused = run(bench, "--temperature", "1")
    assert refused.exit_code and "at least 4 measured drafters, got 0" in refused.stderr


def test_far_sizes_and_other_files_are_refused(bench: Path, tmp_path: Path) -> None:
    far = run(bench, "--sizes", "2e6,2e8")
    assert far.exit_code and "at most 4 times beyond" in far.stderr
    assert run(bench, "--data", "1e12").exit_code
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"rows": 3}))
    assert "finished bench" in run(other).stderr
