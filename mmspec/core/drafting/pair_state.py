"""Drafters that read pairs of a hidden feature and the token after it, stored after a round and read before a draft."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mmspec.core.drafting.growth import DraftBudget, grow_draft
from mmspec.core.drafting.request_shape import ShapeMixin, shape_for_request
from mmspec.core.drafting.shapes import Chain, Shape
from mmspec.core.length.controls import learn_lengths
from mmspec.core.round.draft import Draft, Evidence, Verdict, gather_nodes, root_only, run_of
from mmspec.core.round.keys import Keys
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.tree import chain

Pairs = tuple[Tensor, Tensor, list[int]]


class PendingFeatures:
    """Pairs not read yet. Per round: hidden states of the accepted path [B, n, F], the value after each, and the valid
    pairs."""

    def __init__(self) -> None:
        self.rounds: list[Pairs] = []

    def __len__(self) -> int:
        return len(self.rounds)

    def note(self, paths: list[list[int]], draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """`paths` holds the accepted nodes per row (root first), empty for a stopped row."""
        counts = [len(path) for path in paths]
        if draft.tree.nodes == 1:
            self.rounds.append((evidence.hidden, verdict.correction[:, None], counts))
            return
        width = max(counts)
        following, _ = run_of(draft, verdict)
        hidden = gather_nodes(evidence.hidden, verdict.path[:, :width])
        self.rounds.append((hidden, following[:, :width], counts))

    def known(self) -> Pairs:
        return self.rounds[0] if len(self.rounds) == 1 else _joined(self.rounds)

    def take(self) -> Pairs:
        pairs, self.rounds = self.known(), []
        return pairs


def _joined(rounds: list[Pairs]) -> Pairs:
    hidden, ids = torch.cat([r[0] for r in rounds], 1), torch.cat([r[1] for r in rounds], 1)
    valid = [
        [place < counts[row] for _, new, counts in rounds for place in range(new.shape[1])]
        for row in range(ids.shape[0])
    ]
    counts = [sum(row) for row in valid]
    order = torch.tensor(valid, device=ids.device).logical_not().long().argsort(dim=1, stable=True)[:, : max(counts)]
    return gather_nodes(hidden, order), ids.gather(1, order), counts


class FixedPendingFeatures:
    """`PendingFeatures` of a single round in fixed tensors, for captured rounds: [B, W, F], int64 [B, W] and [B]."""

    def __init__(self, rows: int, width: int, pairs: PendingFeatures | FixedPendingFeatures):
        hidden, value, _ = _latest(pairs)
        self.hidden = hidden.new_zeros(rows, width, *hidden.shape[2:])
        self.value = value.new_zeros(rows, width)
        self.count = value.new_zeros(rows)

    def __len__(self) -> int:
        return 1

    def load(self, pairs: PendingFeatures | FixedPendingFeatures) -> None:
        hidden, value, count = _latest(pairs)
        count = count if isinstance(count, Tensor) else value.new_tensor(count)
        for own, new in ((self.hidden, hidden), (self.value, value)):
            own.zero_()[: new.shape[0], : new.shape[1]] = new
        self.count.zero_()[: len(count)] = count

    def note(self, counts: Tensor, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """`counts` int64 [B] is the number of valid nodes of every row's path."""
        self.hidden = gather_nodes(evidence.hidden, verdict.path)
        self.value, _ = run_of(draft, verdict)
        self.count = counts

    def take(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.hidden, self.value, self.count


def _latest(pairs: PendingFeatures | FixedPendingFeatures) -> tuple[Tensor, Tensor, Tensor | list[int]]:
    return pairs.take() if isinstance(pairs, FixedPendingFeatures) else pairs.rounds[-1]


class PairState:
    """Base of the states that `growth.py` steps over a `BatchTarget`. A domain adds `read`, `logits` and `law`. `root`
    float [B, F] is the predicted feature after the last committed pair, from which depth 1 is drawn. `next_position`
    int64 [B] is None before the prompt is read; `deepest` is limited by `trained_depth`; `counts` are the pairs of the
    last `catch_up` per row."""

    cache: SlotPool
    independent = False
    ids: Tensor | None = None
    held: ClassVar[tuple[str, ...]] = ()  # attributes that persist; a class that lists them can be captured

    def __init__(self, drafter: ShapeMixin, target: object):
        self.drafter, self.passes = drafter, 0
        self.serve(target)
        self.pending_features = PendingFeatures()
        self.counts: list[int] = []
        self.root: Tensor | None = None
        self.next_position: Tensor | None = None

    def serve(self, target: object) -> None:
        self.target = target
        self.shape = shape_for_request(self.drafter.shape_for(target.greedy, target.device), target)
        limit = self.drafter.trained_depth
        self.deepest = self.shape.longest if limit is None else min(self.shape.longest, limit)

    def resize(self, shape: Shape) -> None:
        """Draft in another shape of `tree_sizes`. The choice must not depend on unverified values."""
        self.shape = shape

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        """Return predicted features [B, n, F] of new slots, which do not count yet, from the features `hidden` and the
        values after them. `ahead` int64 [1, n] or a number: positions relative to the next position. For the rest see
        `bias`."""
        raise NotImplementedError

    def bias(self, ancestor: Tensor | None, back: int, dtype: torch.dtype, count: int = 1) -> Tensor | None:
        """Return the attention bias of `count` new slots; None if they see all earlier slots and rows are equally long.
        `ancestor` is bool [R, n, back + n] over the `back` drafted nodes in the cache and these, None on a chain."""
        if ancestor is None:
            if self.cache.uniform:
                return None
            ancestor = torch.ones(1, 1, back + count, dtype=torch.bool, device=self.target.device)
        return self.cache.bias(ancestor, dtype, back)

    def remember(self, attend: Tensor, rotary: Tensor, count: Tensor) -> None:
        """Write a prompt without computing its outputs; later slots attend only its keys. Row r uses the first
        `count[r]` (int64 [R]) slots of `attend` [R, S, A]; `rotary` as in `DraftLayer.heads`. The cache is empty, or
        all rows have the same number of slots."""
        layer, (rows, slots, _) = self.drafter.layer, attend.shape
        if not slots:
            empty = attend.new_zeros(rows, layer.config.groups, 0, layer.config.dim)
            self.cache.reserve(empty, empty)
            return
        self.passes += 1
        layer.remember(attend, rotary, self.cache)
        if bool((count == slots).all()):
            self.cache.advance(slots)
        else:  # per cache row: the branches of a guided pair may differ
            self.cache.lengths, self.cache.length = count.tolist(), count

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.learn_length(draft, verdict)
        self.pending_features.note(target.paths, draft, evidence, verdict)

    def learn_length(self, draft: Draft, verdict: Verdict) -> None:
        learn_lengths(getattr(self.shape, "length", None), draft, verdict)

    def prefill(self) -> None:
        raise NotImplementedError

    def catch_up(self, depth: int | None = None) -> None:
        """Read the stored pairs in a single pass; `depth` (None for `deepest`) is for drafters that draft in it."""
        hidden, value, self.counts = self.pending_features.take()
        counts, tree = self.counts, chain(value.shape[1] - 1, value.device)
        out = self.read(value, hidden, tree.depth, tree.ancestor if value.shape[1] > 1 else None, 0)
        if not isinstance(counts, Tensor) and len(counts) == 1:
            self.root = out[:, counts[0] - 1]
            self.next_position = self.next_position + counts[0]
            self.cache.advance(counts[0])
            return
        count = counts if isinstance(counts, Tensor) else torch.tensor(counts, device=value.device)
        self.root = gather_nodes(out, (count - 1).clamp(min=0)[:, None])[:, 0]
        self.next_position = self.next_position + count
        self.cache.advance(counts)

    def rewind(self, count: int) -> None:
        self.cache.advance(-count)
        self.next_position = self.next_position - count

    def ready(self, depth: int | None = None) -> None:
        """Read all that is known so far, after which `root` is up to date."""
        if self.next_position is None:
            self.prefill()
        if self.pending_features:
            self.catch_up(depth)

    def draft_budget(self, longest: int | None = None) -> DraftBudget:
        depth = self.deepest if longest is None else min(self.deepest, longest)
        return DraftBudget(depth, self.target.rooms(depth))

    @torch.no_grad()
    def propose(self, target: object, keys: Keys, longest: int | None = None) -> Draft:
        budget = self.draft_budget(longest)
        if budget.is_empty:
            return root_only(target.pending)
        self.ready(budget.depth)
        return self.draft(target, keys, budget)

    def draft(self, target: object, keys: Keys, budget: DraftBudget) -> Draft:
        """Draft right after `ready`; levels are cut before anything is drawn."""
        whole = isinstance(self.shape, Chain) or budget.depth >= self.deepest
        return grow_draft(self, target, self.shape if whole else self.shape.cut(budget.depth), keys, budget)

    def feature(self, out: Tensor, depth: int) -> Tensor:
        """Return the predicted features [B, n, F] behind the children at `depth` (from 1)."""
        return out

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Nodes of a level share a position; see `LevelwiseState`."""
        out = self.read(token, hidden, depth - 1, ancestor, back)
        self.cache.advance(token.shape[1])
        return out
