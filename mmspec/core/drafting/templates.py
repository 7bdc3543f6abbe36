"""Shapes of static draft trees from how often children are right."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def likeliest_tree(nodes: int, depth: int, hit_rates: Sequence[float]) -> tuple[int, ...]:
    """Parents of the tree of `nodes` nodes (root included) with the most expected accepted tokens.

    depth: no node lies deeper.   hit_rates: falling chances in (0, 1) that a node's child of rank 0, 1, ... is right.
    Nodes come in order of falling chance, so a prefix of the list is the best smaller tree.
    Raises ValueError when the sizes leave no such tree.
    """
    rates = tuple(hit_rates)
    if any(not 0 < r < 1 for r in rates) or any(a < b for a, b in zip(rates, rates[1:], strict=False)):
        raise ValueError(f"hit_rates: expected falling chances in (0, 1), got {rates}")
    if nodes < 1 or depth < 1:
        raise ValueError(f"nodes, depth: expected at least 1, got {nodes} and {depth}")
    parents, levels = [0], [0]
    heap = [(-rate, rank, 0) for rank, rate in enumerate(rates)]  # minus the chance, order of coming, parent
    heapq.heapify(heap)
    came = len(rates)
    while heap and len(parents) < nodes:
        chance, _, parent = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        levels.append(levels[parent] + 1)
        if levels[node] < depth:
            for rate in rates:
                heapq.heappush(heap, (chance * rate, came, node))
                came += 1
    if len(parents) < nodes:
        raise ValueError(f"nodes: expected at most {len(parents)} at depth {depth}, width {len(rates)}, got {nodes}")
    return tuple(parents)
