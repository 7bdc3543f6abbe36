"""How far exact rules are from the longest accepted run that any exact rule can reach, by a linear programme."""

from __future__ import annotations

import numpy
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_array

from mmspec.certify.enumeration import Tables, every_draft, expected_accepted, random_tables, target_law
from mmspec.core.round.draft import Drawn
from mmspec.core.round.rules import BlockVerification, KSeq, RecursiveRejection, Traversal
from mmspec.core.round.tree import Tree, chain, static_tree
from tests.core.round.rules.cases import WITH, WITHOUT

PAIR, TWO_LEVELS = static_tree([0, 0, 0]), static_tree([0, 0, 0, 1, 1, 2, 2])


def longest(tree: Tree, p: Tables, q: Tables, drawn: Drawn) -> float:
    """The largest mean number of accepted values: over all ways to end every draft at a node with a correction y, so that
    path, y and a continuation by p have the target's joint law. No rule is longer, whatever it reads.
    """
    drafts, size, length = every_draft(tree, q, drawn), p[0].shape[-1], len(p)
    rows, nodes, depth = len(drafts.value), tree.nodes, tree.depth[0].tolist()
    tails = {}
    for level in set(depth):  # the law of what follows a path of this depth and its correction, per prefix number
        laws = torch.eye(size ** (level + 1), dtype=torch.float64)
        for table in p[level + 1 :]:
            laws = (laws[..., None] * table).flatten(1)
        tails[level] = laws.numpy()
    value, row, column = [], [], []
    gain = numpy.zeros(rows * nodes * size)
    for number, (draft, node, y) in enumerate(numpy.ndindex(rows, nodes, size)):
        gain[number] = depth[node] if drafts.valid[draft, node] else -1e3
        tail = tails[depth[node]][int(drafts.code[draft, node]) * size + y]
        cells = tail.nonzero()[0]
        value += [1.0, *tail[cells]]
        row += [draft, *(rows + cells)]
        column += [number] * (1 + len(cells))
    total = coo_array((value, (row, column)), shape=(rows + size**length, len(gain)))
    goal = numpy.concatenate([drafts.chance.numpy(), target_law(p).numpy()])
    found = linprog(-gain, A_eq=total.tocsr()[1:], b_eq=goal[1:], method="highs")  # the rows are redundant by one
    assert found.status == 0, found.message
    return -float(found.fun)


def tables(seed: int, depth: int, peak: float = 1.0) -> tuple[Tables, Tables]:
    return random_tables(3, depth + 1, seed, peak=peak), random_tables(3, depth, seed + 50, peak=peak)


@pytest.mark.parametrize("seed", range(3))
def test_block_verification_is_the_longest_rule_of_a_chain(seed: int) -> None:
    p, q = tables(seed, 2)
    assert expected_accepted(BlockVerification(), chain(2), p, q) == pytest.approx(longest(chain(2), p, q, WITHOUT))


@pytest.mark.parametrize("seed", range(4))
def test_traversal_lies_between_recursive_rejection_and_the_longest_rule(seed: int) -> None:
    for tree in (PAIR, TWO_LEVELS):
        p, q = tables(seed, tree.max_depth)
        bound = longest(tree, p, q, WITHOUT)
        traversal = expected_accepted(Traversal(), tree, p, q)
        assert expected_accepted(RecursiveRejection(), tree, p, q) <= traversal + 1e-9
        assert 0.8 * bound < traversal <= bound + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_no_rule_of_independent_siblings_exceeds_the_bound(seed: int) -> None:
    p, q = tables(seed, 1)
    bound = longest(PAIR, p, q, WITH)
    for rule in (KSeq(), RecursiveRejection(replacement=True)):
        assert expected_accepted(rule, PAIR, p, q, drawn=WITH) <= bound + 1e-9
