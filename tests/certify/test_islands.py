"""Islands: steps that are wrong in a small part of the uniforms fail, and a certificate bounds what it can have missed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mmspec.certify import certify
from mmspec.certify.probes import ProbeBudget, probe, visible_island
from mmspec.certify.regions import RegionMap
from mmspec.certify.runners import BATCH
from tests.certify import planted

# width of the band, and whether the defect concerns one draft of nine
EXPERIMENTS = ((0.003, True), (0.01, True), (0.001, False))


def seen_in(places: Sequence[int], width: float, one_draft: bool) -> list[bool]:
    """Whether the default settings see the island, at every place."""
    return [not certify(planted.Island(place, width, one_draft)).exact for place in places]


@pytest.mark.default_cells("0.003-True")
@pytest.mark.parametrize(("width", "one_draft"), EXPERIMENTS)
def test_an_island_is_seen(width: float, one_draft: bool) -> None:
    # the cutting alone misses the first and the third band at both places, and the second one at the latter
    assert all(seen_in((4, 6), width, one_draft))


@pytest.mark.whole
@pytest.mark.parametrize(("width", "one_draft"), EXPERIMENTS)
def test_an_island_is_seen_in_twenty_places_of_twenty(width: float, one_draft: bool) -> None:
    start = time.perf_counter()
    count = sum(seen_in(range(20), width, one_draft))
    print(f"width {width}, one draft {one_draft}: {count} of 20 in {time.perf_counter() - start:.1f} s")
    assert count == 20


def test_a_certificate_states_the_island_that_its_probes_would_have_seen() -> None:
    found = certify(planted.right, laws=("random", "far"), probes=400)
    bound = 1 - 0.01 ** (1 / min(case.probes for case in found.cases))
    assert found.exact and all(case.probes >= 400 for case in found.cases)
    assert max(case.island for case in found.cases) == found.island == pytest.approx(bound)
    for text in (found.sizes(), found.says):
        assert f"islands of more than {bound:.2g}" in text


def test_by_default_an_island_of_a_thousandth_would_be_seen() -> None:
    found = certify(planted.right, laws=("random",))
    assert found.exact and found.island < 0.001


def test_too_few_probes_are_refused() -> None:
    with pytest.raises(ValueError, match="probes: expected at least 100, got 99"):
        certify(planted.right, probes=99)


def test_a_step_that_fails_has_no_bound() -> None:
    found = certify(planted.one_row_late, laws=("random",))
    assert not found.exact and found.island is None and found.cases[0].probes == 0
    assert "islands" not in found.sizes()


def test_the_bound_is_met_99_times_in_a_hundred() -> None:
    island = visible_island(300)
    dice = torch.Generator().manual_seed(0)
    points = torch.rand(4000, 300, generator=dice, dtype=torch.float64)
    assert float((points < island).any(1).double().mean()) == pytest.approx(0.99, abs=0.005)
    assert math.isclose((1 - island) ** 300, 0.01)


def mapped(ask, axes: int = 1) -> RegionMap:
    found = RegionMap(ask, 1, axes)
    found.search([0])
    return found


def test_a_slow_step_is_probed_less_but_never_less_than_a_hundred_times() -> None:
    def slow(row: Tensor, point: Tensor) -> Tensor:
        time.sleep(2e-5 * len(row))
        return (point[:, 0] < 0.3).long()

    few, more = (probe(mapped(slow), ProbeBudget(100_000, seconds)) for seconds in (0.0, 0.05))
    assert 100 <= few < 200 < more < 20_000


def test_a_region_that_probes_find_gets_its_volume() -> None:
    def ask(row: Tensor, point: Tensor) -> Tensor:
        return ((point[:, 1] > 0.31) & (point[:, 1] < 0.312) & (point[:, 0] < 0.4)).long()

    found = mapped(ask, 2)
    assert probe(found, ProbeBudget(20_000, 60)) >= 20_000
    regions = found.regions()
    assert float(regions.volume[regions.code == 1].sum()) == pytest.approx(0.4 * 0.002, abs=1e-12)


def test_probes_within_rounding_of_an_edge_are_no_evidence() -> None:
    def ask(row: Tensor, point: Tensor) -> Tensor:
        # a large batch is computed in another order, and rounds otherwise
        return (point[:, 0] < 0.5 + 9e-7 * (len(row) > 1000)).long()

    found = mapped(ask)
    assert probe(found, ProbeBudget(3_000_000, 60)) >= 3_000_000
    assert len(found.regions().row) == 2


def test_a_row_that_changes_in_a_large_batch_is_named() -> None:
    found = certify(planted.wrong_in_large_batches, laws=("random",))
    assert not found.exact and found.behaves_like == BATCH and found.distance > 0.01


# a ball of this radius has a volume of 0.003
RADIUS = (0.003 * 3 / 4 / math.pi) ** (1 / 3)


@pytest.mark.parametrize("one_draft", (True, False))
def test_an_island_that_is_no_box_is_seen(one_draft: bool) -> None:
    found = certify(planted.Ball(0, RADIUS, one_draft), laws=("random",))
    assert not found.exact and found.method == "regions" and 1e-5 < found.distance < 0.004
    assert any("not boxes" in note for note in found.notes)


def test_an_exact_step_with_islands_is_sampled() -> None:
    found = certify(planted.Ball(0, 0.2, one_draft=False, keeps_the_law=True), laws=("random",), samples=5000)
    assert found.exact and found.method == "samples" and "so it was sampled" in found.notes[0]


def test_a_step_that_has_failed_is_not_sampled_for_its_later_cases() -> None:
    def step(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        # wrong where the laws are far apart, and without regions where they are equal
        if torch.equal(p[:, :-1], q):
            return planted.mixes(tokens, q, p, uniforms)
        return planted.one_row_late(tokens, q, p, uniforms)

    found = certify(step, laws=("far", "equal"))
    assert not found.exact and found.method == "regions" and [case.laws for case in found.cases] == ["far"]


@pytest.mark.whole
def test_a_ball_is_seen_in_twenty_places_of_twenty() -> None:
    assert not any(certify(planted.Ball(place, RADIUS, one_draft=True)).exact for place in range(20))
