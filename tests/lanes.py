"""The default lane of the suite: which cells of a product of parameters it runs.

`make test` leaves out what is marked `whole`, `make test-all` runs everything. A test of several parametrized axes that is
marked `covering` keeps a covering array of its cells in the default lane: with `strength=2` (the default) every pair of values
of two axes, with `strength=1` every value of every axis. A test that is marked `default_cells("ID", ...)` keeps the cells with
these ids, which stand between its brackets. All other cells are marked `whole`. Cells that are marked `whole` by a value of an
axis count in no covering array.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest

Cell = tuple[int, ...]


def covering_array(cells: Sequence[Cell], strength: int) -> list[int]:
    """Choose cells that hold all combinations of `strength` values which any cell holds.

    Greedy: the cell that adds most is taken, the first of equals.

    Args:
        cells: the number of every axis' value, one tuple a cell; all of one length.
        strength: how many axes are combined.

    Returns:
        The places of the chosen cells, ascending.
    """
    held = [combinations_of(cell, strength) for cell in cells]
    left = set().union(*held)
    chosen = []
    while left:
        best = max(range(len(cells)), key=lambda place: (len(held[place] & left), -place))
        chosen.append(best)
        left -= held[best]
    return sorted(chosen)


def combinations_of(cell: Cell, strength: int) -> set[tuple]:
    """The combinations of values that a cell holds, each with its axes."""
    width = min(strength, len(cell))
    return {(axes, tuple(cell[axis] for axis in axes)) for axes in combinations(range(len(cell)), width)}


def cells_of(cases: Sequence[pytest.Item]) -> list[Cell]:
    """The cells of a test's cases. Arguments of one `parametrize` count as one axis, values as the same by their identity."""
    numbers: dict[tuple, int] = {}
    cells = []
    for case in cases:
        cell = []
        for mark in case.iter_markers("parametrize"):
            names = mark.args[0]
            names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
            value = (*names, *(id(case.callspec.params[name]) for name in names))
            cell.append(numbers.setdefault(value, len(numbers)))
        cells.append(tuple(cell))
    return cells


def mark_whole(items: Iterable[pytest.Item], selected_by_hand: bool = False) -> None:
    """Mark the cells that the default lane leaves out, of every test that is marked `covering` or `default_cells`.

    Args:
        items: the collected tests.
        selected_by_hand: whether the command names single tests, so that some cells of a test may be missing.

    Raises:
        UsageError: for an id in `default_cells` that no cell of the test has.
    """
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        if (mark := cases[0].get_closest_marker("covering")) is not None:
            cases = [case for case in cases if case.get_closest_marker("whole") is None]
            places = set(covering_array(cells_of(cases), mark.kwargs.get("strength", 2)))
        elif (mark := cases[0].get_closest_marker("default_cells")) is not None:
            ids = [case.callspec.id for case in cases]
            if not selected_by_hand and (missing := sorted(set(mark.args) - set(ids))):
                raise pytest.UsageError(
                    f"{name}: expected ids of its cells in default_cells, got {missing}; it has {ids}"
                )
            places = {place for place, text in enumerate(ids) if text in mark.args}
        else:
            continue
        for place, case in enumerate(cases):
            if place not in places:
                case.add_marker(pytest.mark.whole)
