"""Curves: what is read from training logs, and the one sentence where they cannot be drawn."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest

from mmspec.evaluate.engine.registry import domain_of
from mmspec.evaluate.report.palette import GREY
from mmspec.evaluate.report.plots import LABELLED, Panel, draw, training_curve, training_panels
from mmspec.evaluate.report.style import need_matplotlib
from mmspec.evaluate.vlm.page import SHOWN


def log(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_curve_is_the_lines_that_measured_acceptance(tmp_path: Path) -> None:
    online = log(
        tmp_path / "a", {"step": 20, "loss": 3.0}, {"step": 100, "accept_length": 2.5}, {"step": 120, "loss": 2.0}
    )
    offline = log(tmp_path / "b", {"step": 100, "accept_length": 2.0}, {"step": 200, "accept_length": 3.0, "loss": 1.0})
    (panel,) = training_panels({"online": online, "offline": offline})
    assert panel.lines == {"online": ((100,), (2.5,)), "offline": ((100, 200), (2.0, 3.0))}
    draw([panel], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_logs_without_a_curve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected lines with 'accept_length', got none"):
        training_curve(log(tmp_path / "a", {"step": 1, "loss": 2.0}))
    (tmp_path / "b").write_text('{"accept_length": 2.0}\n')
    with pytest.raises(ValueError, match="line 1: expected a JSON object with a step"):
        training_curve(tmp_path / "b")
    (tmp_path / "c").write_text("[1]\nhello\n")
    with pytest.raises(ValueError, match="line 2: expected a JSON object"):
        training_curve(tmp_path / "c")


def test_missing_matplotlib_reports_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ValueError, match=r"expected matplotlib, got none, pip install \"mmspec\[eval\]\""):
        need_matplotlib()


def test_results_without_a_curve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a suite with a curve, got 'drafters'"):
        domain_of("vlm").panels({"env": {"suite": "drafters"}, "rows": []})
    with pytest.raises(ValueError, match="expected rows with figures to draw"):
        draw(domain_of("vlm").panels({"env": {"suite": "lengths"}, "rows": []}), tmp_path / "none.png")


def made_up(tasks: int, drafters: int, flat: bool = False) -> dict:
    """A lengths bench of so many settings and drafters, each with a controlled row."""
    rows = []
    for task in range(tasks):
        common = {"task": f"task {task}", "batch": 1, "temperature": 0.0}
        for number in range(drafters):
            for point in (1, 4, 8):
                value = 1.0 + (0 if flat else number + point / 10)
                row = {"drafter": f"d{number}", "method": f"d{number} {point}", "point": point, "controlled": False}
                rows.append(common | row | {"accept_length": value, "speedup_vs_ar": value / 2})
            row = {"drafter": f"d{number}", "method": f"d{number}, goodput", "point": None, "controlled": True}
            rows.append(common | row | {"accept_length": 1.02, "speedup_vs_ar": 0.51})
    return {"env": {"suite": "lengths"}, "rows": rows}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list:
    """Every figure that is drawn during the test, still open."""
    plt = need_matplotlib()
    kept: list = []
    monkeypatch.setattr(plt, "close", kept.append)
    yield kept
    monkeypatch.undo()
    for figure in kept:
        plt.close(figure)


@pytest.mark.parametrize("drafters", (1, 3))
@pytest.mark.parametrize("tasks", (1, 2, 5))
def test_a_settings_panels_share_a_row_and_a_line_has_one_colour(
    tasks: int, drafters: int, tmp_path: Path, figures: list
) -> None:
    draw(domain_of("vlm").panels(made_up(tasks, drafters)), tmp_path / "lengths.png")
    (figure,) = figures
    shown = [axis for axis in figure.axes if axis.get_title()]
    rows = {}
    for axis in shown:
        rows.setdefault(axis.get_title(), set()).add(axis.get_subplotspec().rowspan.start)
    settings = 1 if drafters == 1 and tasks > 1 else min(tasks, SHOWN)
    assert len(shown) == 2 * settings and all(len(places) == 1 for places in rows.values())
    colours = {}
    for axis in shown:
        for line in axis.lines:
            colours.setdefault(line.get_label(), set()).add(str(line.get_color()))
    assert all(len(found) == 1 for found in colours.values())
    if settings > 1 or tasks == 1:  # a controlled row has the colour of its drafter, and is dashed
        assert len(colours) == 2 * drafters and len(set.union(*colours.values())) == drafters


def names_in(axis: object) -> list[str]:
    return [text.get_text() for text in axis.texts]


def test_names_stand_beside_lines_and_never_outside_their_panel(tmp_path: Path, figures: list) -> None:
    draw(domain_of("vlm").panels(made_up(1, 3)), tmp_path / "lengths.png")
    for axis in figures[0].axes:
        assert {"d0", "d1", "d2"} <= set(names_in(axis))
        frame = axis.get_window_extent()
        for text in axis.texts:
            box = text.get_window_extent()
            assert (
                frame.x0 - 2 <= box.x0 and box.x1 <= frame.x1 + 2 and frame.y0 - 2 <= box.y0 and box.y1 <= frame.y1 + 2
            )
            assert text.get_fontsize() >= 11
        boxes = [text.get_window_extent() for text in axis.texts]
        assert not any(box.overlaps(other) for i, box in enumerate(boxes) for other in boxes[:i])
    assert figures[0].get_figwidth() <= 8 and not figures[0].legends


def test_a_full_panel_names_the_best_known_methods_alone(tmp_path: Path, figures: list) -> None:
    lines = {f"other {place}": ((1.0, 2.0), (place, place + 1.0)) for place in range(20)}
    lines |= {"MSD": ((1.0, 2.0), (3.0, 3.5)), "plain": ((1.0,), (1.0,))}
    draw([Panel("", "x", "y", lines)], tmp_path / "full.png")
    (axis,) = figures[0].axes
    names = names_in(axis)
    assert {"MSD", "plain"} <= set(names) and len(names) == LABELLED
    grey = {line.get_label() for line in axis.lines if line.get_color() == GREY}
    assert grey == set(lines) - set(names)


def test_the_best_of_both_axes_are_named_first(tmp_path: Path, figures: list) -> None:
    lines = {f"other {place}": ((1.0 + place / 100,), (2.0,)) for place in range(12)} | {"best": ((3.0,), (1.0,))}
    draw([Panel("", "x", "y", lines, better="lower")], tmp_path / "best.png")
    assert names_in(figures[0].axes[0])[0] == "best"


@pytest.mark.parametrize("flat", (False, True))
def test_no_line_is_cut_however_flat_all_are(flat: bool, tmp_path: Path, figures: list) -> None:
    draw(domain_of("vlm").panels(made_up(1, 3, flat)), tmp_path / "lengths.png")
    for axis in figures[0].axes:
        low, high = axis.get_ylim()
        assert low == 0 and max(max(line.get_ydata()) for line in axis.lines) <= 0.96 * high


def test_lines_that_only_a_later_panel_has_are_named_there(tmp_path: Path, figures: list) -> None:
    first, second = (Panel(name, "step", "accept_length", {name: ((1,), (2,))}) for name in "xy")
    draw([first, second], tmp_path / "two.png")
    assert [names_in(axis) for axis in figures[0].axes] == [["x"], ["y"]]
