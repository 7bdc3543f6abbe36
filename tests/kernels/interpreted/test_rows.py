"""Statistics, lookups, masses, cuts and random numbers: kernels give what the references give."""

from __future__ import annotations

import pytest
import torch

from mmspec.kernels.counter import row_keys, uniforms, uniforms_reference
from mmspec.kernels.law import (
    best_match,
    best_match_reference,
    dense,
    law_of,
    law_rows,
    mass_at,
    mass_at_reference,
    row_stats,
    row_stats_reference,
)
from mmspec.kernels.law_pair import law_pair, law_pair_reference
from mmspec.kernels.log_law import LogLaw
from mmspec.kernels.sampling import truncated_scores, truncation_floor, truncation_floor_reference
from tests.kernels.interpreted.laws import both_forms, over_sizes, scores, tolerance


@over_sizes
def test_statistics(size: int, nodes: int, dtype: torch.dtype) -> None:
    given = scores(size, nodes, dtype, 0, spoiled=True)
    inverse = torch.tensor([0.5, 1.3], dtype=torch.float64 if dtype == torch.float64 else torch.float32)[: len(given)]
    floor = (given.to(inverse.dtype) * inverse[:, None, None]).amax(-1) - 1.0
    for how in ((None, None), (inverse, floor)) if nodes < 31 else ((inverse, None),):
        found, expected = row_stats(given, *how), row_stats_reference(given, *how)
        torch.testing.assert_close(found.law.stats, expected.law.stats, equal_nan=True, **tolerance(dtype))
        sound = expected.top.isfinite()
        torch.testing.assert_close(found.top[sound], expected.top[sound], rtol=0, atol=0)
        assert torch.equal(found.best[sound], expected.best[sound])
        assert ((found.best >= 0) & (found.best < size)).all()


@over_sizes
@pytest.mark.poison
def test_a_distribution_from_row_statistics_is_the_softmax(size: int, nodes: int, dtype: torch.dtype) -> None:
    given = scores(size, nodes, dtype, 1, spoiled=True)
    law = law_rows(given)
    assert isinstance(law, LogLaw) and law.shape == given.shape
    expected = law_of(given)
    torch.testing.assert_close(dense(law), expected, equal_nan=True, **tolerance(dtype))
    index = torch.arange(nodes).flip(0)
    picked = law.index_select(1, index).index_select(1, index[:1])
    torch.testing.assert_close(dense(picked), dense(law)[:, nodes - 1 - index[:1]], equal_nan=True, rtol=0, atol=0)


def test_ties_go_to_the_lowest_id_across_tiles_and_spans() -> None:
    given = torch.zeros(1, 1, 40_000)
    given[0, 0, [39_999, 17_000, 9_000]] = 1.0
    assert int(row_stats(given).best) == 9_000
    assert int(row_stats(torch.zeros(1, 1, 40_000)).best) == 0


@over_sizes
@pytest.mark.poison
def test_a_greedy_match_is_the_argmax_of_the_parent(size: int, nodes: int, dtype: torch.dtype) -> None:
    given = scores(size, nodes, dtype, 2)
    parent = (torch.arange(nodes)[None] - 1).clamp_min(0)
    value = torch.where(torch.arange(nodes) % 3 == 0, 0, given.argmax(-1).gather(1, parent.expand(len(given), -1)))
    live = torch.arange(nodes).expand_as(value) < max(nodes - 1, 1)
    for flags in (None, live):
        for found, expected in zip(
            best_match(given, value, parent, flags), best_match_reference(given, value, parent, flags), strict=True
        ):
            assert torch.equal(found, expected)


@over_sizes
@pytest.mark.poison
def test_a_pair_of_laws_and_their_masses_of_drafted_tokens(size: int, nodes: int, dtype: torch.dtype) -> None:
    target, drafter = (
        scores(size, nodes, dtype, 2, spoiled=True),
        scores(size, nodes + 1, dtype, 3)[: 2 if nodes < 4 else 1],
    )
    generator = torch.Generator().manual_seed(4)
    parent = (torch.arange(nodes)[None] - torch.tensor([[1]])).clamp_min(0)
    row, value = (
        torch.randint(-1, nodes + 1, (nodes,), generator=generator),
        torch.randint(-1, size + 1, (len(target), nodes)),
    )
    found, expected = (f(target, drafter, parent, row, value) for f in (law_pair, law_pair_reference))
    for name in ("p", "q", "child_p", "child_q"):
        ours, other = (getattr(pair, name) for pair in (found, expected))
        ours = dense(ours) if isinstance(ours, LogLaw) else ours
        torch.testing.assert_close(ours, other, equal_nan=True, **tolerance(dtype))
    assert torch.equal(found.token, expected.token) and torch.equal(found.row, expected.row)
    assert torch.equal(found.origin, expected.origin.expand(len(target), -1))


@over_sizes
def test_lookups(size: int, nodes: int, dtype: torch.dtype) -> None:
    law, dense = both_forms(scores(size, nodes, dtype, 2))
    generator = torch.Generator().manual_seed(3)
    for rows in {1, len(dense)}:
        row = torch.randint(-1, nodes, (rows, 63), generator=generator)
        token = torch.randint(-1, size + 1, (len(dense), 63), generator=generator)
        expected = mass_at_reference(dense, row, token)
        torch.testing.assert_close(mass_at(law, row, token), expected, **tolerance(dtype))
        assert torch.equal(mass_at(dense, row, token), expected)


def test_numbers_are_bitwise_the_counter_of_the_core() -> None:
    seeds = torch.randint(-(2**63), 2**63 - 1, (3,))
    for stream in (0, 1, 16, -5, 2**40 + 7, torch.tensor(9), torch.tensor(-(2**50))):
        for lanes in (1, 63, 1500):
            found = uniforms(seeds, stream, lanes)
            assert torch.equal(found, uniforms_reference(seeds, stream, lanes))
            assert torch.equal(found[[2]], uniforms(seeds[[2]], stream, lanes))  # a row's numbers, in any slot
    assert torch.equal(row_keys(seeds, 9), row_keys(seeds, torch.tensor(9)))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    ("size", "nodes", "dtype"),
    [(7, 2, torch.float64), (1013, 2, torch.float32), (127, 2, torch.bfloat16), (16384, 1, torch.float32)],
)
@pytest.mark.parametrize(
    ("top_k", "top_p", "order"),
    [(3, 1.0, "top_k_first"), (0, 0.8, "top_k_first"), (50, 0.7, "top_k_first"), (50, 0.9, "top_p_first")],
)
def test_cuts_are_where_a_sort_finds_them(
    size: int, nodes: int, dtype: torch.dtype, top_k: int, top_p: float, order: str
) -> None:
    if size > 2000 and order == "top_p_first":
        top_k = 0  # a pass over a wide row takes the interpreter long
    given = scores(size, nodes, dtype, 6, batch=1)
    given[:, -1] = given[:, -1].round()  # ties at the cut all stay
    inverse = torch.tensor([0.7])
    found = truncation_floor(given, top_k, top_p, inverse, order)
    expected = truncation_floor_reference(given, top_k if top_k < size else 0, top_p, inverse, order)
    assert torch.equal(found, expected)


SPREADS = {"flat": 1e-3, "usual": 2.0, "steep": 30.0, "beyond whole numbers": 1e8, "equal": 0.0}


@pytest.mark.parametrize(
    "spread",
    [pytest.param(s, id=name, marks=() if name == "flat" else pytest.mark.whole) for name, s in SPREADS.items()],
)
def test_cuts_of_rows_of_any_spread_over_several_spans(spread: float) -> None:
    generator = torch.Generator().manual_seed(8)
    given = 3 + spread * torch.randn(1, 2, 5000, generator=generator, dtype=torch.float64)
    given[0, 1, torch.rand(5000, generator=generator) < 0.9] = -torch.inf
    given[0, 1, 4999] = 3  # in the last span
    for top_k, top_p in ((0, 0.9), (700, 0.6)):
        expected = truncation_floor_reference(given, top_k, top_p, None)
        assert torch.equal(truncation_floor(given, top_k, top_p), expected)
        kept = given.masked_fill(given < expected[..., None], -torch.inf)
        assert torch.equal(truncated_scores(given, top_k, top_p), kept)


def test_a_truncation_floor_keeps_at_least_k_scores_of_a_row() -> None:
    given = scores(127, 2, torch.float32, 7)
    kept = truncated_scores(given, 20, 1.0) > -torch.inf
    assert (kept.sum(-1) >= 20).all() and (given[kept].min() >= given.topk(20, -1).values.amin()).all()
    spoiled = truncation_floor(scores(127, 3, torch.float32, 7, batch=1, spoiled=True), 20, 0.9)
    assert spoiled[0, [0, 2]].isnan().all() and spoiled[0, 1] == -torch.inf
