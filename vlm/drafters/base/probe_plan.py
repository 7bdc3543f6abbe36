"""The allocation of probes behind a draft's nodes: by the drafter's own distributions, or by measured accuracies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, expand_tree
from mmspec.core.round.tree import Tree, dynamic_tree

Accuracies = tuple[tuple[float, ...], ...]
_STEP = 0.6  # the assumed ratio between the gains of a level and of the level above


def allot(draft: Draft, scores: Tensor | None, count: int, most: int) -> Tensor:
    """Put at most `most` probes a row behind the nodes of a draft where the next round gains most, `count` = K a node.
    The gain of probe k behind a node is the chance that the accepted path ends there, times the assumed gain of level k
    + 1 of the next draft. It falls with k, so the probes of a node are a chain. The chances are those of `scores`,
    float32 [B, K, V], None for a root alone. Probe k of node v is v * K + k in the result, int64 [B, P], ascending."""
    gain = end_chances(draft, scores)[..., None] * _STEP ** torch.arange(count, device=draft.value.device)
    return gain.flatten(1).topk(min(most, draft.tree.nodes * count), -1).indices.sort(-1).values


def probe_tree(draft: Draft, chains: Tensor, count: int) -> Tree:
    """Return the tree of a draft's nodes and then their probes `chains`, see `allot`."""
    tree, nodes = draft.tree, draft.tree.nodes
    node, probe = chains // count, chains % count
    before = nodes - 1 + torch.arange(chains.shape[1], device=chains.device)
    parent = torch.cat([expand_tree(tree.parent, draft.batch), torch.where(probe > 0, before, node)], 1)
    deepest, last = tree.max_depth + min(count, chains.shape[1]), parent.shape[1] - 1
    # a tree as deep as its number of nodes counts as a chain, which only probes behind a root alone are
    deepest += deepest == last and nodes > 1
    return dynamic_tree(parent, deepest, last)


def end_chances(draft: Draft, scores: Tensor | None) -> Tensor:
    """Return the chance that the accepted path ends at each node, float32 [B, N], by the drafter's own distributions
    `scores`, float32 [B, K, V], None for a root alone."""
    tree = draft.tree
    if tree.nodes == 1:
        return torch.ones(draft.value.shape, device=draft.value.device)
    level = (expand_tree(tree.depth, draft.batch) - 1).clamp(min=0)
    chosen = scores.log_softmax(-1).flatten(1).gather(1, level * scores.shape[-1] + draft.value).clamp(min=-20)
    chosen[:, 0] = 0
    chosen = chosen if draft.valid is None else torch.where(draft.valid, chosen, -20.0)
    chance = (tree.ancestor.float() @ chosen[..., None])[..., 0].exp()
    child = torch.cat([torch.zeros_like(chance[:, :1]), chance[:, 1:]], 1)
    passed = torch.zeros_like(chance).scatter_add(1, expand_tree(tree.parent, draft.batch), child)
    return (chance - passed).clamp(min=1e-9)


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The drafts and their probes for every number of levels that the last round's probes have drafted, from 0. Paper:
    "Parallel Prompt Decoding" (arXiv 2405.18628)."""

    trees: tuple[tuple[int, ...], ...]  # parents of a draft's nodes; siblings are a level's best tokens in order
    chains: tuple[tuple[int, ...], ...]  # the probes in order, see `allot`
    values: tuple[float, ...]  # the expected tokens of a round
    shares: tuple[float, ...]  # the stationary distribution of the number of levels

    @classmethod
    def of(cls, accuracies: Accuracies, nodes: int, budget: int) -> ProbePlan:
        """Return the plan of passes over at most `budget` rows: the root, at most `nodes` drafted nodes, and a probe or
        more. `accuracies` are, per level, the chance of each rank to be right where the levels above are, in falling
        order. The tree holds the likeliest paths, and every node starts with all K probes. The last probe of a node is
        removed where the chance that the path ends there, times the tokens that the next round loses, is least."""
        count = len(accuracies)
        grown = [_likeliest(accuracies[:levels], min(nodes, budget - 2)) for levels in range(count + 1)]
        values = [sum(chances) for _, chances in grown]
        chains, steps = [], torch.zeros(count + 1, count + 1, dtype=torch.float64)
        for state, (parents, chances) in enumerate(grown):
            ends, lengths = list(chances), [count] * len(parents)
            for node, parent in enumerate(parents[1:], 1):
                ends[parent] -= chances[node]
            while len(parents) + sum(lengths) > budget:
                losses = [(ends[v] * (values[n] - values[n - 1]), -v) for v, n in enumerate(lengths) if n]
                lengths[-min(losses)[1]] -= 1
            chains.append(tuple(v * count + k for v, n in enumerate(lengths) for k in range(n)))
            for end, length in zip(ends, lengths, strict=True):
                steps[state, length] += end
        lazy = (steps + torch.eye(count + 1)) / 2  # without periods, and with the same stationary distribution
        shares = torch.linalg.matrix_power(lazy, 1 << 14)[0].tolist()
        return cls(tuple(tuple(parents) for parents, _ in grown), tuple(chains), tuple(values), tuple(shares))

    @classmethod
    def best(cls, accuracies: Accuracies, cost: Callable[[int], float], most: int) -> ProbePlan:
        """Return the plan of most tokens per unit of time, by `PassCosts.cost`, among budgets from 3 to `most`."""
        plans = [cls.of(accuracies, nodes, budget) for budget in range(3, most + 1) for nodes in range(1, budget - 1)]
        return max(plans, key=lambda plan: plan.tokens / plan.cost(cost))

    @property
    def tokens(self) -> float:
        return sum(share * value for share, value in zip(self.shares, self.values, strict=True))

    def cost(self, cost: Callable[[int], float]) -> float:
        """Return the expected cost of a round, from the cost of a pass over a number of rows."""
        rows = [len(tree) + len(own) for tree, own in zip(self.trees, self.chains, strict=True)]
        return sum(share * cost(number) for share, number in zip(self.shares, rows, strict=True))


def _likeliest(accuracies: Sequence[Sequence[float]], nodes: int) -> tuple[list[int], list[float]]:
    """Return the parents of a root and of the `nodes` likeliest paths, best first, and the chance of each node."""
    parents, chances, depths = [0], [1.0], [0]
    waiting: list[tuple[float, int, int]] = []

    def offer(parent: int, rank: int) -> None:
        if depths[parent] < len(accuracies) and rank < len(accuracies[depths[parent]]):
            waiting.append((chances[parent] * accuracies[depths[parent]][rank], -parent, rank))

    offer(0, 0)
    while waiting and len(parents) <= nodes:
        waiting.remove(best := max(waiting))
        chance, parent, rank = best[0], -best[1], best[2]
        parents.append(parent)
        chances.append(chance)
        depths.append(depths[parent] + 1)
        offer(parent, rank + 1)
        offer(len(parents) - 1, 0)
    return parents, chances
