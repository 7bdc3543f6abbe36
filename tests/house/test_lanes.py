"""The default lane keeps every pair of a product that it cuts, or every value where a test asks for no more."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.lanes import combinations_of, covering_array

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
