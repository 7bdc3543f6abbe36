"""The figures of the pages: every one is drawn from tables, and shown by a page."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = spec_from_file_location("site_figures", ROOT / "docs" / "_site" / "figures.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("cell", "value", "ends"),
    [
        ("2.06 (2.00-2.12)", 2.06, [2.0, 2.12]),
        ("-0.0005 (-0.0019 to 0.0012)", -0.0005, [-0.0019, 0.0012]),
        ("0.0106 (4.245e-05-0.02224)", 0.0106, [4.245e-05, 0.02224]),
        ("0.0093 (-1.851e-05-0.02117)", 0.0093, [-1.851e-05, 0.02117]),
        ("-", None, None),
        ("48/48", 48, None),
    ],
)
def test_cells_are_numbers_with_intervals(figures: ModuleType, cell: str, value: float, ends: list | None) -> None:
    assert figures.number(cell) == value and figures.interval(cell) == ends


def test_every_figure_has_its_numbers_from_tables(figures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, object] = {}

    def keep(content: object, *rest: object) -> None:
        path = next(one for one in rest if isinstance(one, Path))
        drawn[path.stem] = content

    monkeypatch.setattr(figures, "draw", keep)
    for module, names in (
        (figures.pareto, ("draw", "overview")),
        (figures.profiles, ("draw_positions", "draw_shares")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, keep)
    figures.main([])
    assert all(drawn.values()) and len(drawn) == 18
    points = {value for panel in drawn["estimate"] for _, ys in panel.clouds.values() for value in ys}
    table = next(one for one in figures.tables(ROOT / "docs" / "estimate.md") if "timed passes" in one.rows[0])
    assert points == {float(line["predicted"]) for line in table.rows}
    assert {title.partition(",")[0] for title in drawn["time"]} == {"captions"}
    assert all(panel.lines for name in ("lengths", "blocks", "pictures") for panel in drawn[name])


def test_names_are_drawn_in_the_folder_of_figures(figures: ModuleType) -> None:
    files = {file.name for file in figures.FOLDER.iterdir()}
    source = (ROOT / "docs" / "_site" / "figures.py").read_text(encoding="utf-8")
    assert set(re.findall(r'FOLDER / "([a-z0-9_]+\.png)"', source)) <= files
