"""The default lane keeps every pair of a product that it cuts, every value, or the cells that a test names."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.lanes import combinations_of, covering_array, mark_whole

SIZES = ((3, 4), (2, 3, 4), (5, 2, 2, 3), (17, 2, 2))


@pytest.mark.parametrize("strength", (1, 2))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_combination_is_kept(sizes: tuple[int, ...], strength: int) -> None:
    cells = list(product(*map(range, sizes)))
    kept = [cells[place] for place in covering_array(cells, strength)]
    wanted = set().union(*(combinations_of(cell, strength) for cell in cells))
    assert set().union(*(combinations_of(cell, strength) for cell in kept)) == wanted
    least = max(a * b if strength == 2 else max(a, b) for a in sizes for b in sizes if a is not b)
    assert len(kept) <= 1.5 * least + 2
    assert len(kept) < len(cells) or (strength, len(sizes)) == (2, 2)


def test_only_combinations_that_exist_are_wanted() -> None:
    assert covering_array([(0, 0), (1, 1), (1, 1)], 2) == [0, 1]


def test_a_marked_test_leaves_the_other_cells_to_the_whole_lane(request: pytest.FixtureRequest) -> None:
    """This module's own product below, of which the default lane holds four cells that have every pair."""
    run = [item for item in request.session.items if item.name.startswith("test_eight_cells")]
    kept = [item for item in run if not item.get_closest_marker("whole")]
    if len(run) not in (4, 8):
        pytest.skip("a part of the product was selected by hand")
    assert len(kept) == 4
    for first, second in combinations("abc", 2):
        assert len({(item.callspec.params[first], item.callspec.params[second]) for item in kept}) == 4


@pytest.mark.covering
@pytest.mark.parametrize(("a", "named"), ((0, "zero"), (1, "one")))
@pytest.mark.parametrize("b", (0, 1))
@pytest.mark.parametrize("c", (0, 1))
def test_eight_cells(a: int, named: str, b: int, c: int) -> None:
    assert {a, b, c} <= {0, 1} and named == ("zero", "one")[a]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("a", (pytest.param(0, marks=pytest.mark.whole), 1, 2))
@pytest.mark.parametrize("b", (0, 1))
def test_four_cells_and_two(a: int, b: int) -> None:
    assert a in (0, 1, 2) and b in (0, 1)


def test_cells_that_are_marked_whole_hold_no_value(request: pytest.FixtureRequest) -> None:
    run = [item for item in request.session.items if item.name.startswith("test_four_cells_and_two")]
    kept = [item for item in run if not item.get_closest_marker("whole")]
    if len(run) not in (2, 6):
        pytest.skip("a part of the cells was selected by hand")
    assert [{item.callspec.params[axis] for item in kept} for axis in "ab"] == [{1, 2}, {0, 1}]


@pytest.mark.default_cells("one", "three")
@pytest.mark.parametrize("number", (1, 2, 3), ids=("one", "two", "three"))
def test_three_cells(number: int) -> None:
    assert number in (1, 2, 3)


def test_named_cells_stay_in_the_default_lane(request: pytest.FixtureRequest) -> None:
    run = [item for item in request.session.items if item.name.startswith("test_three_cells")]
    kept = [item.callspec.id for item in run if not item.get_closest_marker("whole")]
    if len(run) not in (2, 3):
        pytest.skip("a part of the cells was selected by hand")
    assert kept == ["one", "three"]


def test_a_named_cell_that_does_not_exist_is_refused(request: pytest.FixtureRequest) -> None:
    run = [item for item in request.session.items if item.name.startswith("test_three_cells")]
    with pytest.raises(pytest.UsageError, match=r"default_cells, got \['three'\]"):
        mark_whole(item for item in run if item.callspec.id != "three")
    mark_whole((item for item in run if item.callspec.id != "three"), selected_by_hand=True)
