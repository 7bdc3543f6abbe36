"""Drafts from marginals: which rules their laws are exact under, and which prefixes are the likeliest."""

from __future__ import annotations

import heapq
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import EnumeratedDrafts, inexactness, random_tables
from mmspec.core.drafting.dynamic import best_prefixes
from mmspec.core.drafting.shapes import DynamicTree
from mmspec.core.round.rules.rejection import BlockVerification, RecursiveRejection, TokenWise, Traversal
from mmspec.core.round.rules.target_match import TargetMatch
from mmspec.core.round.tree import static_tree

V = 3
CHAIN, TREE = static_tree((0, 0, 1)), static_tree((0, 0, 0, 1, 1, 2, 2))


def marginals(seed: int) -> list[Tensor]:
    """Context tables of two levels whose laws look at no prefix."""
    first, second = random_tables(V, 1, seed)[0], random_tables(V, 1, seed + 1)[0]
    return [first, second.expand(V, -1).clone()]


@pytest.mark.parametrize("rule", (TokenWise(), BlockVerification(), TargetMatch()), ids=lambda rule: rule.name)
def test_a_chain_drawn_from_marginals_is_exact(rule: object) -> None:
    for seed in range(4):
        assert inexactness(rule, CHAIN, random_tables(V, 3, seed), marginals(seed + 50)) < 1e-12


@pytest.mark.parametrize("rule", (RecursiveRejection(), Traversal()), ids=lambda rule: rule.name)
def test_a_tree_with_siblings_drawn_apart_is_exact(rule: object) -> None:
    assert inexactness(rule, TREE, random_tables(V, 3, 1), marginals(51)) < 1e-12


@pytest.mark.parametrize("rule", (TargetMatch(),), ids=lambda rule: rule.name)
def test_best_tokens_of_marginals_are_exact(rule: object) -> None:
    assert inexactness(rule, CHAIN, random_tables(V, 3, 2), marginals(52), drawn="deterministic") < 1e-12


def shared_draws(q: list[Tensor]) -> EnumeratedDrafts:
    """Every draft of TREE whose two parents of the second level have the same two children."""
    values, chances = [], []
    for (a, b), (c, d) in ((x, y) for x in permutations(range(V), 2) for y in permutations(range(V), 2)):
        one, two = q[0][0], q[1][0]
        values.append([0, a, b, c, d, c, d])
        chances.append(one[a] * one[b] / (1 - one[a]) * two[c] * two[d] / (1 - two[c]))
    value = torch.tensor(values)
    code = torch.zeros_like(value)
    for node, parent in enumerate(TREE.parent[0].tolist()):
        if node:
            code[:, node] = code[:, parent] * V + value[:, node]
    return EnumeratedDrafts(value, code, torch.ones_like(value, dtype=torch.bool), torch.stack(chances))


def test_shared_siblings_are_exact_from_the_root_down_and_not_for_a_rule_that_looks_ahead() -> None:
    worst = {"recursive": 0.0, "traversal": 0.0}
    for seed in range(6):
        p, q = random_tables(V, 3, seed), marginals(seed + 50)
        drafts = shared_draws(q)
        assert float(drafts.chance.sum()) == pytest.approx(1)
        for rule in (RecursiveRejection(), Traversal()):
            found = inexactness(rule, TREE, p, q, drafts=drafts)
            worst[rule.name] = max(worst[rule.name], found)
    assert worst["recursive"] < 1e-12
    assert worst["traversal"] > 1e-6


def by_heap(laws: Tensor, nodes: int) -> set[tuple[int, ...]]:
    """The likeliest prefixes of log-laws [D, V], best first from a heap."""
    heap, found = [(-float(law), (token,)) for token, law in enumerate(laws[0])], set()
    heapq.heapify(heap)
    while heap and len(found) < nodes:
        cost, prefix = heapq.heappop(heap)
        found.add(prefix)
        if len(prefix) < len(laws):
            for token, law in enumerate(laws[len(prefix)]):
                heapq.heappush(heap, (cost - float(law), (*prefix, token)))
    return found


@pytest.mark.parametrize("nodes, depth", ((1, 1), (7, 3), (20, 4), (40, 6)))
def test_the_likeliest_prefixes_are_those_a_heap_finds(nodes: int, depth: int) -> None:
    generator = torch.Generator().manual_seed(nodes)
    scores = 2 * torch.randn(3, depth, 11, generator=generator)
    state = SimpleNamespace(ids=None, root=torch.zeros(3, 1), logits=lambda out, level: scores[:, level - 1 : level])
    target = SimpleNamespace(batch=3, pending=torch.tensor([8, 9, 10]))
    made = best_prefixes(state, target, DynamicTree(nodes=nodes, depth=depth, width=max(nodes, 11)))
    assert made.law.kind == "onehot" and bool(made.valid.all())
    for row, laws in enumerate(scores.log_softmax(-1)):
        paths = {
            tuple(made.value[row, made.tree.path[row, node, 1 : int(made.tree.depth[row, node]) + 1]].tolist())
            for node in range(1, nodes + 1)
        }
        assert paths == by_heap(laws, nodes)
        assert made.value[row, 0] == target.pending[row]


def test_a_width_bounds_the_tokens_of_each_level() -> None:
    scores = torch.randn(1, 3, 11, generator=torch.Generator().manual_seed(0))
    state = SimpleNamespace(ids=None, root=torch.zeros(1, 1), logits=lambda out, level: scores[:, level - 1 : level])
    made = best_prefixes(state, SimpleNamespace(batch=1, pending=torch.tensor([8])), DynamicTree(12, 3, 3))
    for level in range(3):
        drafted = made.value[made.tree.depth == level + 1].tolist()
        assert set(drafted) <= set(scores[0, level].topk(3).indices.tolist())
