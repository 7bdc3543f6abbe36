"""`mmspec evaluate` and `mmspec report` end to end on a tiny model in a folder, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.cli import app
from tests.evaluate.tiny_run import files

pytestmark = pytest.mark.usefixtures("built_once")

runner = CliRunner()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files(tmp_path_factory.mktemp("files"))


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*words: object):
    result = runner.invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def grid(made: Path, *more: object) -> tuple:
    model = f"image={made / 'model'}"
    return ("--model", model, "--decoding", "sjd:window=4", "--prompts", f"jsonl={made / 'prompts.jsonl'}", "--count", 4,
            "--threads", 1, *more)  # fmt: skip


@pytest.mark.whole
def test_one_command_writes_the_records_the_tables_and_the_pareto_plot(made: Path) -> None:
    result = invoke("evaluate", "run", *grid(made, "--samples", 4, "--export", "dpg=dpg", "--json", "out.json"))
    assert result.exit_code == 0, result.stderr
    assert Path("run/report/pareto.png").read_bytes().startswith(b"\x89PNG") and Path("run/report/pareto.svg").is_file()
    rows = json.loads(Path("out.json").read_text())["rows"]
    assert [row["decoding"] for row in rows] == ["ar", "sjd:window=4"] and all(row["exact"] for row in rows)
    assert "SJD (window 4)" in result.stdout and "x plain, decode only" in Path("run/report/report.md").read_text()
    assert "covariances are singular" in result.stdout and len(list(Path("dpg").glob("*/p?.png"))) == 2 * 4
    shards = {file: file.read_bytes() for file in Path("run/shards").iterdir()}
    again = invoke("report", "run", "--out", "elsewhere", "--json", "again.json")
    assert again.exit_code == 0 and json.loads(Path("again.json").read_text())["rows"] == rows
    assert Path("elsewhere/report.md").is_file() and shards == {
        file: file.read_bytes() for file in Path("run/shards").iterdir()
    }


@pytest.mark.whole
def test_a_part_reports_missing_samples_and_the_last_part_writes_the_report(made: Path) -> None:
    first = invoke("evaluate", "run", *grid(made, "--part", "1/2"))
    assert first.exit_code == 0 and "run: 4 samples of other parts are missing" in first.stdout
    assert not Path("run/report").exists()
    assert (
        invoke("evaluate", "run", *grid(made, "--part", "2/2")).exit_code == 0
        and Path("run/report/report.md").is_file()
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "../run"), "RUN: expected a folder without '..' in its path, got '../run', name it directly"),
        (("report", "runs/../../run"), "RUN: expected a folder without '..' in its path"),
        (("report", "nowhere"), "RUN: expected a folder with shards of a run, got none in 'nowhere'"),
        (("evaluate", "run", "--model", "magic"), "--model: expected one of vlm, vlm/hybrid, vlm/smol"),
        (("evaluate", "run", "--part", "2"), "--part: expected K/N such as 2/4, got '2', correct it"),
        (("evaluate", "run", "--model", "t2i", "--count", "0"), "--count: expected 1 to"),
        (("evaluate", "run", "--temperature", "warm"), "--temperature: expected numbers separated by commas"),
        (
            ("evaluate", "run", "--export", "magic=x"),
            "--export: expected geneval=DIR or dpg=DIR or vbench=DIR, got 'magic=x'",
        ),
        (
            ("evaluate", "run", "--model", "t2i", "--engine", "slurm"),
            "--engine: expected one of local, ray, got 'slurm'",
        ),
        (("evaluate", "run", "--model", "t2i", "--workers", "0"), "--workers: expected at least 1, got 0"),
        (("evaluate", "run", "--model", "t2i", "--extractor", "magic"), "--extractor: expected zoo, inception=FILE"),
        (
            ("evaluate", "run", "--model", "t2i", "--prompts", "coco=/nowhere.json"),
            "expected a JSON file, got none there",
        ),
    ],
)
def test_a_wrong_option_reports_one_usage_error(words: tuple, said: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1
    assert not Path("run/shards").exists()


def test_plots_that_could_not_be_drawn_are_refused_first(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ValueError("no matplotlib")

    monkeypatch.setattr("mmspec.evaluate.report.style.need_matplotlib", missing)
    result = invoke("evaluate", "run", *grid(made))
    assert (
        result.exit_code == 2
        and "--report: expected matplotlib, got none" in result.stderr
        and not Path("run/shards").exists()
    )
    assert invoke("evaluate", "run", *grid(made, "--no-report", "--count", 1)).exit_code == 0
    assert "--plots: expected matplotlib" in invoke("report", "run").stderr
    assert invoke("report", "run", "--no-plots").exit_code == 0 and Path("run/report/rows.csv").is_file()
