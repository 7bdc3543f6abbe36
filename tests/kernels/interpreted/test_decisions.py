"""Thresholds, selection and draws: the same decisions but where a number lies within 1e-6 of its threshold."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from mmspec.core.round.rules.base import keep_live
from mmspec.core.round.rules.laws import Laws
from mmspec.core.round.rules.rejection import _weigh
from mmspec.core.round.rules.siblings import rejection_order, sibling_table, sibling_tables_by_depth
from mmspec.core.round.tree import Tree, chain, dynamic_tree, static_tree
from mmspec.kernels import dispatch
from mmspec.kernels.block_verification import (
    block_thresholds,
    block_thresholds_reference,
    token_thresholds,
    token_thresholds_reference,
)
from mmspec.kernels.draft_tree import accepted_path, select_path, select_path_reference
from mmspec.kernels.law import at_node, dense, mass_at
from mmspec.kernels.log_law import Residual
from mmspec.kernels.neighbour_pooling import borrowing_thresholds, borrowing_thresholds_reference
from mmspec.kernels.residual_sampling import residual_sample, residual_sample_reference, residual_weights
from mmspec.kernels.sequential_rejection import reject_tree
from mmspec.kernels.sibling_thresholds import (
    kseq_discount,
    kseq_discount_reference,
    match_thresholds,
    match_thresholds_reference,
)
from tests.kernels.interpreted.conftest import DEVICE
from tests.kernels.interpreted.laws import IDS, MARKS, SIZES, both_forms, over_sizes, scores, tolerance

ENDS = (0.0, 1 - 2.0**-24)


def agree(found: Tensor, expected: Tensor, uniform: Tensor, allowed: int) -> None:
    """Whether uniform < threshold may differ within 1e-6 of it only, and in at most `allowed` cases."""
    differ = (uniform < found) != (uniform < expected)
    near = (uniform - expected).abs() < 1e-6
    assert not (differ & ~near).any() and int(differ.sum()) <= allowed


@pytest.mark.covering(strength=1)
@over_sizes
@pytest.mark.parametrize("ragged", (False, True), ids=("full", "ragged"))
@pytest.mark.poison
def test_block_thresholds(size: int, nodes: int, dtype: torch.dtype, ragged: bool) -> None:
    p, dense_p = both_forms(scores(size, nodes + 1, dtype, 0, spoiled=True))
    q, dense_q = both_forms(scores(size, nodes, dtype, 1))
    token, parent = torch.randint(size, (len(dense_p), nodes + 1)), (torch.arange(nodes + 1) - 1).clamp_min(0)
    row = torch.arange(nodes + 1).clamp_max(nodes - 1)
    child = (mass_at(dense_p, parent, token), mass_at(dense_q, row[parent], token))
    live = torch.arange(nodes + 1) < torch.tensor([[nodes], [nodes + 1]])[: len(dense_p)] if ragged else None
    found, weight, followed = block_thresholds(*child, p, q, row, live)
    expected, prefix, other = block_thresholds_reference(*child, dense_p, dense_q, row, live)
    assert torch.equal(followed, other)
    torch.testing.assert_close(weight, prefix, equal_nan=True, **tolerance(dtype))
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance(dtype))
    for u in ENDS:
        agree(found, expected, torch.full_like(found, u), 0 if DEVICE == "cpu" else found.numel())
    agree(found, expected, torch.rand(1000, *found.shape), 1 + found.numel() // 10)


@over_sizes
@pytest.mark.poison
def test_thresholds_that_borrow(size: int, nodes: int, dtype: torch.dtype) -> None:
    nodes = min(nodes, 5)
    p, dense_p = both_forms(scores(size, nodes, dtype, 2, batch=2))
    q, dense_q = both_forms(scores(size, nodes, dtype, 3, batch=2))
    row, token = torch.arange(nodes).flip(0), torch.randint(size, (2, nodes))
    exact, table = torch.rand(2, nodes, dtype=p.dtype), torch.randint(size, (max(size - 2, 1), 5))
    for share, both, budget, live in (
        (q, dense_q, (0.25, 0.0), None),
        (None, None, (0.0, 2.0), torch.rand(2, nodes) < 0.7),
    ):
        found = borrowing_thresholds(p, share, row, token, exact, table, budget, live)
        expected = borrowing_thresholds_reference(dense_p, both, row, token, exact, table, budget, live)
        torch.testing.assert_close(found, expected, **tolerance(dtype))
    child = torch.rand(2, 2, nodes, dtype=p.dtype)
    for live in (None, torch.arange(nodes).expand(2, -1) < torch.tensor([[nodes], [1]])):
        for found, expected in zip(
            token_thresholds(*child, live), token_thresholds_reference(*child, live), strict=True
        ):
            torch.testing.assert_close(found, expected)


@pytest.mark.covering(strength=1)
@over_sizes
@pytest.mark.parametrize("ragged", (False, True), ids=("full", "ragged"))
@pytest.mark.parametrize("post", (False, True), ids=("at once", "root first"))
@pytest.mark.poison
def test_a_tree_is_rejected_as_rank_by_rank(
    size: int, nodes: int, dtype: torch.dtype, ragged: bool, post: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = static_tree([0, 0, 0, 0, 1, 1, 2, 4] if size < 2000 else [0, 0, 0])
    compare_rejection(tree, size, dtype, post, False, torch.rand(2, tree.nodes) < 0.7 if ragged else None, monkeypatch)


def compare_rejection(
    tree: Tree,
    size: int,
    dtype: torch.dtype,
    post: bool,
    replacement: bool,
    live: Tensor | None,
    monkeypatch: pytest.MonkeyPatch,
    batch: int = 2,
    seed: int = 2,
) -> None:
    """Reject the children of a tree by kernel and by reference, on the same rows."""
    p, dense_p = both_forms(scores(size, tree.nodes, dtype, seed, batch=batch))
    q, dense_q = both_forms(scores(size, tree.nodes, dtype, seed + 1, batch=batch))
    token, row, order = torch.randint(size, (batch, tree.nodes)), torch.arange(tree.nodes), rejection_order(tree, post)
    child = [mass_at(law, tree.parent, token) for law in (dense_p, dense_q)]
    weight, alpha, beta = reject_tree(p, q, row, *child, token, order, live, post, replacement)
    weight = keep_live(weight, live)
    laws = Laws(dense_p, dense_q, *child, token, row, row[tree.parent], live)
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "has_triton", lambda: False)
        fans = sibling_tables_by_depth(tree) if post else (sibling_table(tree),)
        expected = _weigh(laws, tree, fans, "post" if post else "descend", replacement)
    # behind a weight of 1 or next to 0 the scalars are of no meaning
    parent = expected.threshold.gather(1, tree.parent.expand(batch, -1))
    sound = (expected.threshold > 1e-3) & (expected.threshold < 1) & (parent > 1e-3) & (parent < 1)
    if not post:  # every parent starts at weight 1, so that all scalars count
        sound = torch.ones_like(sound)
        sound[:, 0] = False
    near = {"rtol": 1e-2, "atol": 1e-4} if dtype != torch.float64 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(weight[sound], expected.threshold[sound], **near)
    for found, other in ((alpha, expected.alpha), (beta, expected.beta)):
        torch.testing.assert_close(found[sound], other[sound], **near)
    if live is not None:
        assert (weight[~live] == 0).all()


@pytest.mark.usefixtures("fence")
def test_a_tree_and_a_chain_keep_to_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for post in (False, True):
        compare_rejection(static_tree([0, 0, 0, 0, 1, 1, 2, 4]), 31, torch.float32, post, False, None, monkeypatch)
    p, q = (both_forms(scores(31, nodes, torch.float32, nodes))[0] for nodes in (3, 2))
    child, row = torch.rand(2, 2, 3), torch.tensor([0, 1, 1])
    for live in (None, torch.tensor([[True, True, True], [True, True, False]])):
        block_thresholds(*child, p, q, row, live)
        token_thresholds(*child, live)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("per_row", (False, True), ids=("static", "a tree a row"))
@pytest.mark.parametrize("mode", ("recursive", "with replacement", "traversal"))
def test_random_trees_are_rejected_as_rank_by_rank(mode: str, per_row: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)
    trees = [[0, 0, 0, 0, 3], [0, 0, 0, 2]] + [random_parents(chance) for _ in range(6)]
    for number, parents in enumerate(trees):
        batch, size = 1 + number % 3, (5, 17, 31)[number % 3]
        tree = static_tree(parents)
        if per_row:
            rows = [static_tree(random_parents(chance, len(parents))) for _ in range(batch)]
            depth, rank = (max(getattr(row, name) for row in rows) for name in ("max_depth", "max_rank"))
            tree = dynamic_tree(torch.cat([row.parent for row in rows]), depth, rank)
        live = torch.rand(batch, tree.nodes) < 0.8 if number % 2 else None
        compare_rejection(
            tree,
            size,
            torch.float64,
            mode == "traversal",
            mode == "with replacement",
            live,
            monkeypatch,
            batch,
            seed=number,
        )


def random_parents(chance: random.Random, nodes: int | None = None) -> list[int]:
    return [0, *(chance.randrange(node) for node in range(1, nodes or chance.randrange(3, 9)))]


@pytest.mark.parametrize(("size", "nodes", "dtype"), SIZES[:4], ids=IDS[:4])
def test_discounts_of_kseq(size: int, nodes: int, dtype: torch.dtype) -> None:
    p, dense_p = both_forms(scores(size, 2, dtype, 4))
    q, dense_q = both_forms(scores(size, 2, dtype, 5))
    count = torch.tensor([[0, 3], [1, 5]])
    rho, scale = kseq_discount(p, q, count)
    expected, other = kseq_discount_reference(dense_p, dense_q, count)
    assert ((rho - expected).abs() <= 4 / 2**12 + 1e-6).all()  # one step of the bisection
    same = (rho - expected).abs() < 1e-6
    assert same.sum() >= 3
    torch.testing.assert_close(scale[same], other[same], rtol=1e-4, atol=1e-5)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("nodes", (1, 2, 31, 63))
@pytest.mark.parametrize("ragged", (False, True), ids=("full", "ragged"))
@pytest.mark.poison
def test_selection_and_target_match_on_trees(nodes: int, ragged: bool) -> None:
    generator = torch.Generator().manual_seed(nodes)
    tree = static_tree([0] + [int(torch.randint(i, (), generator=generator)) for i in range(1, nodes)])
    threshold = torch.rand(8, nodes, generator=generator)
    threshold[0], threshold[1], threshold[2, : nodes // 2] = 1, 0, torch.nan
    uniform = torch.rand(8, nodes, generator=generator, dtype=torch.float64)
    uniform[3:5] = torch.tensor(ENDS, dtype=torch.float64)[:, None]
    valid = torch.rand(8, nodes, generator=generator) < 0.8 if ragged else None
    per_row = [
        t.expand(8, *t.shape[1:]).clone() for t in (tree.parent, tree.ancestor, tree.sibling_rank, tree.post_rank)
    ]
    for shape in ((tree.parent, tree.ancestor, tree.sibling_rank, tree.post_rank), per_row):
        for descend in (True, False):
            path, depth = (t.expand(len(shape[0]), *t.shape[1:]) for t in (tree.path, tree.depth))
            found, taken, count = accepted_path(threshold, uniform, shape, valid, descend, path, depth)
            assert torch.equal(found, select_path_reference(threshold, uniform, *shape, valid, descend))
            assert torch.equal(found, select_path(threshold, uniform, *shape, valid, descend))
            assert torch.equal(taken, tree.path[0, found]) and torch.equal(count, tree.depth[0, found])
    earlier = (tree.parent[:, :, None] == tree.parent[:, None, :]) & (
        torch.arange(nodes) < torch.arange(nodes)[:, None]
    )
    earlier[:, :, 0] = False
    mass, token = torch.rand(8, nodes, generator=generator) / 4, torch.randint(6, (8, nodes), generator=generator)
    found, expected = (f(mass, token, earlier, valid) for f in (match_thresholds, match_thresholds_reference))
    torch.testing.assert_close(found, expected)


def test_a_long_chain_is_selected_to_its_end() -> None:
    tree = chain(95)
    shape = (tree.parent, tree.ancestor, tree.sibling_rank, tree.post_rank)
    one, zero = torch.ones(1, 96), torch.zeros(1, 96)
    for descend in (True, False):
        assert int(select_path(one, zero, *shape, None, descend)) == 95


def forms(size: int, nodes: int, dtype: torch.dtype, batch: int) -> dict[str, Residual]:
    p, _ = both_forms(scores(size, nodes, dtype, 6, batch=batch))
    q, _ = both_forms(scores(size, nodes, dtype, 7, batch=batch))
    row, one = torch.zeros(nodes, dtype=torch.long), torch.ones(batch, nodes, dtype=p.dtype)
    token, remove = torch.randint(size, (batch, nodes)), torch.rand(batch, nodes) < 0.7
    if batch == 1:
        return {"residual": Residual("scaled", p, q, row, one, one)}
    return {
        "bonus": Residual("scaled", p, q, row, one, 0 * one),
        "residual": Residual("scaled", p, q, row, one, one),
        "nothing left": Residual("scaled", p, p, torch.arange(nodes), 0.5 * one, one),
        "tokens out": Residual("scaled", p, q, row, one, one, token, remove),
        "kseq": Residual("kseq", p, q, row, 0.9 * one, 1.7 * one),
        "without": Residual("without", p, token=token, remove=remove),
        "plain": Residual("without", p),
    }


@pytest.mark.parametrize(
    ("size", "nodes", "dtype"),
    [
        pytest.param(size, min(nodes, 3), dtype, id=name, marks=marks)
        for (size, nodes, dtype), name, marks in zip(SIZES, IDS, MARKS, strict=True)
    ],
)
@pytest.mark.poison
def test_races_have_the_winner_of_the_reference(size: int, nodes: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(8)
    batch = 4 if size < 2000 else 1
    uniform = torch.rand(batch, size, generator=generator, dtype=torch.float64)
    if batch > 1:
        uniform[1], uniform[2] = ENDS[0], ENDS[1]  # all paces are the weights then, but for one factor
    node = torch.randint(nodes, (batch,), generator=generator)
    seeds = torch.zeros(batch, dtype=torch.long)
    for name, residual in forms(size, nodes, dtype, batch).items():
        found = residual_sample(residual, node, seeds, 0, uniform)
        weight = residual_weights(residual, node)
        weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, at_node(residual.p, node))
        expected = residual_sample_reference(weight, weight, uniform)
        pace = weight.double() / -uniform.clamp(2.0**-53, 1 - 2.0**-53).log()
        best, other = (pace.gather(1, one[:, None])[:, 0] for one in (expected, found))
        assert (weight.gather(1, found[:, None]) > 0).all(), name
        assert (other >= best * (1 - 1e-4)).all() and int((found != expected).sum()) <= 1, name


def test_a_race_without_a_distribution_stays_in_range() -> None:
    p, _ = both_forms(torch.full((2, 1, 5000), torch.nan))
    for residual in (Residual("without", p), Residual("scaled", p, p, torch.zeros(1).long(), *torch.ones(2, 2, 1))):
        found = residual_sample(residual, torch.zeros(2).long(), torch.arange(2), 3)
        assert ((found >= 0) & (found < 5000)).all()


def test_a_race_reads_the_rows_own_lanes_in_any_slot() -> None:
    p, _ = both_forms(scores(1013, 1, torch.float32, 9, batch=4))
    seeds, node = torch.tensor([5, -7, 11, 2**61]), torch.zeros(4, dtype=torch.long)
    found = residual_sample(Residual("without", p), node, seeds, 77)
    from mmspec.kernels.counter import uniforms_reference

    expected = residual_sample_reference(dense(p)[:, 0], dense(p)[:, 0], uniforms_reference(seeds, 77, 1013))
    assert torch.equal(found, expected)
    order = torch.tensor([2, 0, 3, 1])
    moved, _ = both_forms(p.scores[order])
    assert torch.equal(residual_sample(Residual("without", moved), node, seeds[order], torch.tensor(77)), found[order])
