"""A report is complete, says what its plots mean, and draws plain decoding always, exact filled and relaxed hollow."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.report import pareto
from mmspec.evaluate.report.build import write_report
from mmspec.evaluate.report.pareto import front
from mmspec.evaluate.report.rows import rows
from mmspec.evaluate.report.style import figure_of, legend, looks
from mmspec.evaluate.report.tables import as_csv
from tests.evaluate.report.kept import failed, grid, header, sample, score, written


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Pictures at one temperature, texts at two."""
    folder = tmp_path_factory.mktemp("run")
    written(folder, grid(6), header(dim=2))
    texts = [
        sample(decoding, prompt, seconds, model="vlm", domain="vlm", shows="text", temperature=t, passes=passes)
        for t in (0.0, 1.0)
        for prompt in range(3)
        for decoding, seconds, passes in (("ar", 2.0, 10), ("eagle", 1.5, 4))
    ]
    texts.append(failed("flash", 0, model="vlm", domain="vlm", shows="text"))
    scores = [score(text, objects_right=0.5 + 0.1 * text["order"]) for text in texts if text["failed"] is None]
    return written(folder, [*texts, *scores], header("vlm"))


def test_a_report_is_complete(run: Records, tmp_path: Path) -> None:
    report = write_report(run, tmp_path / "report")
    names = {file.name for file in report.files}
    stems = {f"{what}-{model}" for what in ("pareto", "acceptance", "time") for model in ("t2i", "vlm")}
    stems |= {"pareto", "temperature-vlm"}
    drawn = {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert names == drawn | {"report.md", "rows.csv", "rows.json", "acceptance.csv", "time.csv"}
    assert {file.name for file in (tmp_path / "report").iterdir()} == names
    for file in report.files:
        assert file.suffix != ".png" or file.read_bytes().startswith(b"\x89PNG")
        assert file.suffix != ".svg" or "<svg" in file.read_text()
    page = (tmp_path / "report" / "report.md").read_text()
    for word in ("| sjd:window=4 | exact |", "| sjd + gsd | relaxed |", "![quality against speed](pareto.png)"):
        assert word in page
    assert "end to end" in page and "decode only" in page and "flash (vlm, T = 1) failed in 1 of 1" in page
    assert "0.1.0+test" in page and "mmspec evaluate run" in page
    assert json.loads((tmp_path / "report" / "rows.json").read_text())["rows"] == report.rows


def test_a_page_lists_the_command_of_every_writer(tmp_path: Path) -> None:
    written(tmp_path, grid(2), header(command="mmspec evaluate run --count 4"))
    fewer = {"t2i": {"set": "zoo", "count": 2, "hash": "g"}}
    found = written(tmp_path, [], header(command="mmspec evaluate run --count 2", prompts=fewer))
    page = write_report(found, tmp_path / "report", plots=False).files[0].read_text()
    (command,) = [line for line in page.splitlines() if line.startswith("| command |")]
    assert {f"`mmspec evaluate run --count {count}`" in command for count in (2, 4)} == {True}
    assert "t2i: 4 of zoo (h)" in page and "t2i: 2 of zoo (g)" in page
    assert "| machine | P, cores: 2, threads: 1, Linux |" in page and "| writers | 2 |" in page


@pytest.mark.whole
def test_the_same_run_gives_the_same_bytes(run: Records, tmp_path: Path) -> None:
    made = [row for row in rows(run) if row["model"] == "t2i"]
    first, second = (pareto.draw(made, tmp_path / name) for name in ("a", "b"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second] and len(first) == 2


def test_tables_alone_need_no_plots(run: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.evaluate.report.style.need_matplotlib", lambda: pytest.fail("plots were drawn"))
    report = write_report(run, tmp_path, plots=False)
    assert {file.suffix for file in report.files} == {".md", ".csv", ".json"}


def test_a_run_without_samples_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="RUN: expected a run with samples"):
        write_report(written(tmp_path, []), tmp_path / "report")


def test_csv_holds_every_row_with_both_ends_of_every_interval(run: Records) -> None:
    made = rows(run)
    read = list(csv.DictReader(io.StringIO(as_csv(made))))
    assert len(read) == len(made) == 3 + 2 * 2 + 1
    for row, kept in zip(made, read, strict=True):
        speed = row["speedup_vs_ar"]
        assert kept["method"] == row["method"] and kept["speedup_vs_ar"] == ("" if speed is None else str(speed))
        if row.get("clip_score_interval"):
            ends = [float(kept["clip_score_interval_low"]), float(kept["clip_score_interval_high"])]
            assert ends == row["clip_score_interval"]


@pytest.mark.parametrize(
    ("better", "points", "expected"),
    [
        ("higher", [(1, 9), (2, 8), (3, 3), (2.5, 2), (0.5, 9)], [(1, 9), (2, 8), (3, 3)]),
        ("lower", [(1, 1), (2, 0.5), (3, 4), (1.5, 0.5)], [(2, 0.5), (3, 4)]),
        ("lower", [(1, 1), (1, 1)], [(1, 1)]),
        ("higher", [(2, 1), (2, 3)], [(2, 3)]),
    ],
)
def test_the_front_holds_the_undominated_points(better: str, points: list, expected: list) -> None:
    assert front(points, better) == expected


def test_marks_say_exact_relaxed_and_plain(run: Records) -> None:
    made = [row for row in rows(run) if row["model"] == "t2i"]
    look = looks(made)
    assert look["plain"].mark == "*" and look["plain"].colour == "#000000"
    exact, relaxed = look["sjd:window=4"], look["sjd + gsd"]
    assert exact.filled and not relaxed.filled and exact.colour != relaxed.colour
    assert exact.marks()["mfc"] == exact.colour and relaxed.marks()["mfc"] == "white"


def test_long_names_leave_panels_their_height() -> None:
    heights = []
    for name in ("short", "a name that is longer than half of the figure, and more"):
        with figure_of(2, 1) as (figure, axes):
            handles = [axes[0, 0].plot([0, 1])[0] for _ in range(9)]
            legend(figure, handles, ["one"] * 8 + [name])
            figure.canvas.draw()
            heights.append(axes[0, 0].get_window_extent().height / figure.dpi)
    assert min(heights) > 1.6 and max(heights) - min(heights) < 0.2


def test_every_panel_draws_plain_decoding_with_arms_of_its_intervals(
    run: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple] = []
    whole = pareto._panel

    def panel(axis, part, name, look) -> None:
        whole(axis, part, name, look)
        drawn.append((name, [container.lines[0] for container in axis.containers], part))

    monkeypatch.setattr(pareto, "_panel", panel)
    pareto.draw([row for row in rows(run) if row["model"] == "t2i"], tmp_path / "p")
    assert [name for name, _, _ in drawn] == ["frechet", "kernel"]
    for name, marks, part in drawn:
        (star,) = [mark for mark in marks if mark.get_marker() == "*"]
        plain = next(row for row in part if row["plain"])
        assert (star.get_xdata()[0], star.get_ydata()[0]) == (1.0, plain[name]) and marks[-1] is star
        assert sum(mark.get_markerfacecolor() == "white" for mark in marks) == 1 and len(marks) == 3


def test_without_quality_there_is_no_pareto(tmp_path: Path) -> None:
    found = written(tmp_path, [sample("ar", 0), sample("eagle", 0)])
    assert pareto.draw(rows(found), tmp_path / "p") == pareto.overview(rows(found), tmp_path / "q") == []
