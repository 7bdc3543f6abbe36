"""The tab of runs reads what lies in the server's folder, and nothing else."""

from __future__ import annotations

import base64
import re
from html import escape
from pathlib import Path

import pytest

from mmspec.evaluate.report.pareto import draw
from mmspec.evaluate.report.tables import grids
from mmspec.web.limits import Limits, RefusedRequest
from mmspec.web.runs import known_runs, plots, rows_of_run
from tests.evaluate.report.kept import grid, sample, written


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "runs"
    written(folder / "one", grid())
    written(folder.parent / "secret", grid(3))
    (folder / "empty").mkdir()
    (folder / "link").symlink_to(folder.parent / "secret")
    return folder


def test_runs_are_listed_by_name(runs: Path, tmp_path: Path) -> None:
    assert "one" in known_runs(runs) and not {"empty", "link"} & set(known_runs(runs))
    assert known_runs(tmp_path / "nothing") == []
    assert known_runs(runs / "one") == ["."]


@pytest.mark.parametrize(
    "name", ["..", "../secret", "one/../../secret", "/etc", "link", "", None, 7, ["one"], "one\0", "empty", "x" * 5000]
)
def test_invalid_run_names_report_one_error(runs: Path, name: object) -> None:
    with pytest.raises(RefusedRequest) as caught:
        rows_of_run(runs, name, Limits())
    assert str(caught.value).count("expected") == 1 and str(runs) not in str(caught.value)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_damaged_run_is_refused_without_the_servers_path(runs: Path) -> None:
    (runs / "torn" / "shards").mkdir(parents=True)
    (runs / "torn" / "shards" / "a.jsonl").write_text("not json\n")
    with pytest.raises(RefusedRequest) as caught:
        rows_of_run(runs, "torn", Limits())
    assert str(runs) not in str(caught.value)


def test_too_many_rows_are_left_to_the_report(runs: Path) -> None:
    with pytest.raises(RefusedRequest, match="use `mmspec report`"):
        rows_of_run(runs, "one", Limits(rows=1))


def test_every_table_has_the_plot_of_its_report_and_its_figures(runs: Path, tmp_path: Path) -> None:
    rows, _ = rows_of_run(runs, "one", Limits())
    drawn = plots(rows)
    (held,) = re.findall(r'<img class="mm-plot" alt="[^"]+" src="data:image/svg\+xml;base64,([^"]+)">', drawn)
    (file,) = draw(rows, tmp_path / "plot", ("svg",))
    assert base64.b64decode(held) == file.read_bytes() and b">sjd + gsd</text>" in file.read_bytes()
    for table in grids(rows):
        assert all(f"<td>{escape(cell)}</td>" in drawn for line in table.lines for cell in line)


def test_a_table_without_quality_has_no_plot(tmp_path: Path) -> None:
    written(tmp_path / "fast", [sample("ar", 0), sample("eagle", 0)])
    drawn = plots(rows_of_run(tmp_path, "fast", Limits())[0])
    assert "<img" not in drawn and "<td>eagle</td>" in drawn


def test_names_in_a_run_are_escaped(tmp_path: Path) -> None:
    records = [dict(record, title="<script>x</script>") if "title" in record else record for record in grid(3)]
    written(tmp_path / "odd", records)
    rows, _ = rows_of_run(tmp_path, "odd", Limits())
    drawn = plots(rows)
    (held,) = re.findall(r'base64,([^"]+)"', drawn)
    assert "<script>" not in drawn and b"<script>" not in base64.b64decode(held)


def test_a_name_that_looks_like_a_formula_is_drawn_as_it_is(tmp_path: Path) -> None:
    records = [dict(record, title=r"a $\frac{$ b") if "title" in record else record for record in grid(3)]
    written(tmp_path / "odd", records)
    assert "<img" in plots(rows_of_run(tmp_path, "odd", Limits())[0])
