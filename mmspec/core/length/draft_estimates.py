from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import log2, sqrt

# The prior of acceptance by depth. Trained drafters of text are accepted at the first level in 0.8 to 0.95 of drafts
# and n-grams in 0.2 to 0.4, and a deeper level about as often as the level above it.
_FIRST, _FIRST_WEIGHT = 0.6, 3.0  # the assumed rate of the first level, and its weight in tries: few misses outvote it
_BESIDE = 6.0  # the weight, in tries, of the level above in the estimate of a level
_BEFORE = 6.0  # the weight, in tries, of all earlier requests in the estimate of a request
_LASTING, _RECENT = 0.998, 0.96  # the decay of a try per later try, over requests and within a request
_HOPEFUL = 24  # drafts over which the optimism about a new kind of draft fades
DEEPEST = 64  # levels that estimates reach down to


@dataclass(slots=True)
class DepthCounts:
    """How often a level was accepted given that the level above was, with exponential forgetting."""

    forget: float  # the decay per try
    seen: int = 0  # drafts, without forgetting
    hits: list[float] = field(default_factory=list)  # by depth from 0
    tries: list[float] = field(default_factory=list)  # by depth from 0

    def add(self, accepted: int, drafted: int) -> None:
        self.seen += 1
        for depth in range(min(accepted + 1, drafted)):
            if depth == len(self.hits):
                self.hits.append(0.0)
                self.tries.append(0.0)
            self.hits[depth] = self.forget * self.hits[depth] + (depth < accepted)
            self.tries[depth] = self.forget * self.tries[depth] + 1

    def at(self, depth: int) -> tuple[float, float]:
        return (self.hits[depth], self.tries[depth]) if depth < len(self.hits) else (0.0, 0.0)

    def fade(self) -> None:
        self.hits, self.tries = [0.5 * n for n in self.hits], [0.5 * n for n in self.tries]


@dataclass(slots=True)
class DrawCost:
    """The cost of drafting in plain passes, as a fixed part and a part per level: least squares with forgetting."""

    weight: float = 0.5
    depth: float = 0.5
    square: float = 1.0
    cost: float = 0.01
    product: float = 0.02
    samples: int = 0

    def add(self, depth: int, cost: float) -> None:
        # another process may have delayed a draft; the first samples may be far from the guess
        cost = min(cost, 3 * self.of(depth) + (0.02 if self.samples >= 4 else 0.25))
        keep = 0.97
        self.weight = keep * self.weight + 1
        self.depth = keep * self.depth + depth
        self.square = keep * self.square + depth * depth
        self.cost = keep * self.cost + cost
        self.product = keep * self.product + depth * cost
        self.samples += 1

    def of(self, depth: int) -> float:
        mean_depth, mean_cost = self.depth / self.weight, self.cost / self.weight
        spread = self.square / self.weight - mean_depth**2
        slope = mean_cost / (mean_depth + 1)
        if spread > 0.05:
            measured = (self.product / self.weight - mean_depth * mean_cost) / spread
            slope = min(max(measured, 0.0), 2 * slope)
        return max(mean_cost + slope * (depth - mean_depth), 0.0)


class DrafterEstimates:
    """The estimates for one drafter over requests. `nodes` of a pass and `reach` are for drafters whose shape cannot be
    set. `idle` counts rounds since the last probe, `wait` those between two probes of a slow drafter. `reading` is the
    cost per prompt value; `first` holds drafts from before any had a known cost."""

    first_wait, last_wait = 16, 256

    def __init__(self) -> None:
        self.counts: dict[Hashable, DepthCounts] = {}
        self.costs: dict[int, DrawCost] = {}
        self.nodes: dict[int, float] = {}
        self.reach = 1
        self.drafts = self.idle = 0
        self.wait = self.first_wait
        self.reading: float | None = None
        self.first: list[tuple[int, int, float, int]] = []

    def draw_cost(self, size: int, depth: int) -> float:
        """Return the cost of a draft; a size follows other sizes until it is measured."""
        known = self.costs.get(size)
        if known is None:
            known = next(iter(self.costs.values()), DrawCost())
        return known.of(depth)

    def drew(self, size: int, depth: int, cost: float) -> None:
        self.costs.setdefault(size, DrawCost()).add(depth, cost)

    def read(self, size: int, depth: int, cost: float, prompt: int) -> None:
        self.first.append((size, depth, cost, prompt))
        if not self.costs:
            return
        for size, depth, cost, prompt in self.first:
            share = max(cost - self.draw_cost(size, depth), 0.0) / prompt
            self.reading = share if self.reading is None else self.reading + 0.3 * (share - self.reading)
        self.first = []

    def fade(self) -> None:
        for counts in self.counts.values():
            counts.fade()

    def accepted(self) -> dict[Hashable, list[float]]:
        return {
            kind: [hits / tries for hits, tries in zip(counts.hits, counts.tries, strict=True)]
            for kind, counts in self.counts.items()
        }


class RequestAcceptance:
    def __init__(self, estimates: DrafterEstimates, levels: int = DEEPEST):
        self.estimates, self.levels = estimates, min(levels, DEEPEST)
        self.counts: dict[Hashable, DepthCounts] = {}
        self._tokens: dict[Hashable, list[float]] = {}

    def add(self, kind: Hashable, accepted: int, drafted: int) -> None:
        self.estimates.counts.setdefault(kind, DepthCounts(_LASTING)).add(accepted, drafted)
        self.counts.setdefault(kind, DepthCounts(_RECENT)).add(accepted, drafted)
        self._tokens = {}

    def tokens(self, kind: Hashable) -> list[float]:
        """The expected values per round for 0, 1, 2... drafted levels, the target's own value included."""
        if kind not in self._tokens:
            reach, total, sums = 1.0, 1.0, [1.0]
            for share in self._shares(kind):
                reach *= share
                total += reach
                sums.append(total)
            self._tokens[kind] = sums
        return self._tokens[kind]

    def _shares(self, kind: Hashable) -> list[float]:
        """Return the chance of every level given the level above. A rarely tried tree counts as better than measured."""
        lasting, recent = self.estimates.counts.get(kind, _NOTHING), self.counts.get(kind, _NOTHING)
        alike, share, shares = self._alike(kind), _FIRST, []
        hope = max(1 - lasting.seen / _HOPEFUL, 0.0) if isinstance(kind, int) else 0.0
        for depth in range(self.levels):
            guess = alike[depth] if depth < len(alike) else share
            hits, tries = lasting.at(depth)
            weight = _BESIDE if depth else _FIRST_WEIGHT
            share = (hits + weight * guess) / (tries + weight)
            own_hits, own_tries = recent.at(depth)
            now = (own_hits + _BEFORE * share) / (own_tries + _BEFORE)
            shares.append(min(now + hope * sqrt(now * (1 - now) / (tries + _BESIDE)), 1.0) if hope else now)
        return shares

    def _alike(self, kind: Hashable) -> list[float]:
        """The chances of a tree, estimated from the tree that is nearest in size, or from the chain."""
        known = [(size, own) for size, own in self.estimates.counts.items() if isinstance(size, int) and size != kind]
        if not isinstance(kind, int) or not known:
            return []
        size, counts = min(known, key=lambda pair: abs(pair[0] - kind))
        missed = missed_share(kind) / missed_share(size)
        return [
            max(1 - missed * (1 - hits / tries), 0.05) for hits, tries in zip(counts.hits, counts.tries, strict=True)
        ]


_NOTHING = DepthCounts(1.0)


def missed_share(size: int) -> float:
    """Return the share of a chain's misses that a tree of `size` nodes still has, fitted to trees of trained drafters."""
    return 1 / (1 + 0.12 * log2(size + 1))
