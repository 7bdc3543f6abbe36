from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, Self

import torch
from torch import Tensor

from mmspec.core.drafting.guided import DraftGuide, LevelScores, LevelwiseState, drawable
from mmspec.core.drafting.picks import pick_apart, values_of
from mmspec.core.drafting.shapes import DynamicTree
from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.keys import Keys
from mmspec.core.round.sampling import law_of
from mmspec.core.round.tree import dynamic_tree
from mmspec.io.validation import Range
from mmspec.methods import MethodParts, method, value_of


class NodeFilter(Protocol):
    """Decides, level by level, which nodes of a growing tree are worth a place in the target's pass. With a method
    `chose` it also receives the drafted nodes as int64 [B, N], numbers of the nodes it was asked for."""

    def keeps(self, features: Tensor, drawn: bool) -> Tensor:
        """Return which nodes stay, bool [B, n], from features float32 [B, n, 3]: the logarithm of the node's chance,
        the entropy of its parent's distribution, and its depth. A node to be `drawn` has the chance of the draw, before
        its value is known; a picked node the product of the probabilities down to its value."""


def kept_nodes(score: NodeFilter, chance: Tensor, scores: Tensor, depth: int, drawn: bool) -> Tensor:
    """Return which nodes of a level a filter keeps, bool [B, n, w]; `scores` [B, n, V] are their parents' log-weights."""
    law = law_of(scores)
    entropy = -torch.xlogy(law, law).sum(-1, keepdim=True).expand_as(chance)
    features = torch.stack([chance.clamp(min=1e-9).log(), entropy, torch.full_like(chance, depth)], -1)
    return score.keeps(features.flatten(1, 2).float(), drawn).view_as(chance)


def show_chosen(score: NodeFilter | None, index: Tensor) -> None:
    """Show the nodes of a draft, int64 [B, N], to a filter with a method `chose`."""
    chose = getattr(score, "chose", None)
    if chose is not None:
        chose(index)


@method(
    "best",
    domain=("vlm", "image"),
    kind="shape",
    title="DySpec's tree",
    exact=True,
    order=1,
    about="a tree per row, drawn best first in sampled requests",
    paper="DySpec: Faster Speculative Decoding with Dynamic Token Tree Structure",
)
@dataclass(frozen=True, slots=True)
class BestFirst(DynamicTree):
    """A tree per row that a sampled request draws best first, and a greedy request grows as `DynamicTree`. Exact.

    "DySpec: Faster Speculative Decoding with Dynamic Token Tree Structure". The draw j + 1 of a node is made where it
    is likely to be reached: the chance is the product of the drafter's probabilities down to the node, times the
    probability that draws 1 to j leave. Nothing is removed after it was drawn.

    Args:
        nodes: The drafted nodes (without the root).
        depth: The number of levels.
        width: The nodes expanded in a level, and the most draws of each.
        floor: The least chance of a draw that a level makes at once. Draws below it follow after the last level, the
            likeliest first, until there are `nodes`. 0 stands for 2 / `nodes`, at most 0.5.
        stop: The depths at which the tree of a greedy request may end, see `DynamicTree`.
        score: The filter that leaves out unlikely nodes ("C2T"), such as (c2t@FOLDER); None for none. A row may then
            have fewer nodes, and the nodes of a pass are those of the largest row.
    """

    floor: Annotated[float, Range(0, below=1)] = 0.0
    score: NodeFilter | str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super(BestFirst, self).__post_init__()
        object.__setattr__(self, "score", value_of(self.score, "vlm", "controller"))
        if self.score is not None and not hasattr(self.score, "keeps"):
            raise ValueError(f"score: expected a filter of nodes such as c2t, got {self.score}; use another method")

    @classmethod
    def make(cls, settings: dict[str, Any], parts: MethodParts | None) -> Self:
        """The weights of the filter come from the parts of the drafter."""
        return cls(**{**settings, "score": value_of(settings.get("score"), "vlm", "controller", parts)})


def best_first_draft(
    state: LevelwiseState,
    target: object,
    shape: BestFirst,
    keys: Keys,
    rooms: Sequence[int] | Tensor,
    guide: DraftGuide | None = None,
) -> Draft:
    """Return a drawn tree per row. Whether a draw is made depends on values drawn before it only: the chances of all
    draws of a parent follow from the draws before each of them, and a cut at the largest chances takes the draws that a
    heap would have made first."""
    batch, width, device = target.batch, shape.width, target.device
    # `room` int64 [B]: levels that a row has places for; `left` int64 [B, 1]: nodes that it may still have
    room = rooms if isinstance(rooms, Tensor) else torch.tensor(rooms, device=device)
    floor, scorer = shape.floor or min(2 / shape.nodes, 0.5), LevelScores(state, target, guide, sampled=True)
    left = torch.full((batch, 1), shape.nodes, device=device)
    # of the nodes that are expanded: hidden states, the chance to be reached, and places in the pool
    out, reach, slot = state.root[:, None], torch.ones(batch, 1, device=device), None
    pool, laws, slots = _Pool(), [], []
    ancestor, back = None, 0  # bool [B, n, back], the earlier nodes that each expanded node sees
    for level in range(1, shape.depth + 1):
        # 1. `width` draws without replacement below every expanded node
        scores = scorer.scores(out, level)
        if guide is not None:
            scores, barren = drawable(scores)
            reach = reach.masked_fill(barren, 0)
        scores = scores.expand(-1, reach.shape[1], -1)
        laws.append(scores)
        ranked, column = pick_apart(scores, width, keys, level)
        # 2. the chance that a draw is made: its parent is accepted, and all draws before it are rejected
        share = law_of(scores).gather(-1, column).where(ranked.isfinite(), 0.0)
        before = 1 - torch.cat([torch.zeros_like(share[..., :1]), share[..., :-1].cumsum(-1)], -1)
        drawn = (reach[..., None] * before).clamp_(min=0)
        chance = drawn.where(share > 0, 0.0)
        if shape.score is not None:
            chance = chance.where(kept_nodes(shape.score, drawn, scores, level, True), 0.0)
        # 3. the likeliest draws exist, down to the floor and up to the nodes that are left
        chance = chance.cummin(-1).values.flatten(1)
        chance = chance.where(level <= room[:, None], 0.0)
        exists = (chance >= floor) & (_rank(chance) < left)
        left = left - exists.sum(1, keepdim=True)
        token = values_of(column, state.ids).flatten(1)
        parent = torch.full_like(token, -1) if slot is None else slot.repeat_interleave(width, 1)
        first = pool.add(chance, exists, token, parent)
        if level == shape.depth or (exists.is_cpu and not exists.any()):
            break
        # 4. the nodes that are reached most often are expanded: the drafter reads their tokens
        reach, best = (reach[..., None] * share).flatten(1).where(exists, 0.0).topk(min(width, exists.shape[1]), -1)
        source, token, slot = best // width, token.gather(1, best), best + first
        slots.append(slot)
        own = torch.eye(best.shape[1], dtype=torch.bool, device=device).expand(batch, -1, -1)
        seen = own[..., :0] if ancestor is None else ancestor.gather(1, source[..., None].expand(-1, -1, back))
        ancestor = torch.cat([seen, own], -1)
        hidden = out.expand(-1, laws[-1].shape[1], -1).gather(1, source[..., None].expand(-1, -1, out.shape[-1]))
        out = state.expand(token, hidden, ancestor, back, level)
        scorer.descend(token, source)
        back += best.shape[1]
    return pool.draft(target.pending, shape, laws, slots, state.ids)


class _Pool:
    """Draws by level, [B, n] each: chances float32, whether they exist bool, tokens int64, and parents' indices in the
    pool int64, -1 only for the root."""

    def __init__(self) -> None:
        self.levels: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.size = 0

    def add(self, chance: Tensor, exists: Tensor, token: Tensor, parent: Tensor) -> int:
        self.levels.append((chance, exists, token, parent))
        first, self.size = self.size, self.size + token.shape[1]
        return first

    def draft(
        self, pending: Tensor, shape: BestFirst, laws: list[Tensor], slots: list[Tensor], ids: Tensor | None
    ) -> Draft:
        """Return the draft of the draws that exist and of the likeliest others behind the roots `pending` int64 [B].
        `laws` float32 [B, n, k] are the scores of the expanded nodes by level, `slots` int64 [B, n] their indices in
        the pool from the second level on; `ids` as in `Law`."""
        chance, exists, token, parent = (torch.cat(parts, 1) for parts in zip(*self.levels, strict=True))
        # 1. the draws that exist, then the likeliest others, in the order of the pool
        nodes = min(shape.nodes, self.size)
        if chance.is_cpu:  # reading the host's own memory costs nothing
            nodes = min(nodes, max(int((chance > 0).sum(1).max()), 1))
        chosen = (chance + 2 * exists).sort(dim=1, descending=True, stable=True).indices[:, :nodes].sort(-1).values
        show_chosen(shape.score, chosen)
        # 2. parents by their place among the chosen draws; 0 is the root
        origin = parent.gather(1, chosen)
        place = torch.searchsorted(chosen, origin.clamp(min=0)) + 1
        valid = chance.gather(1, chosen) > 0
        parent = pad_root(torch.where((origin < 0) | ~valid, 0, place), 0)
        # 3. the law of each node's children, -1 for nodes that were not expanded
        row = torch.full_like(chance, -1, dtype=torch.long)
        for number, slot in enumerate(slots[: len(laws) - 1], 1):
            start = sum(law.shape[1] for law in laws[:number])
            row.scatter_(1, slot, torch.arange(start, start + slot.shape[1], device=slot.device).expand_as(slot))
        row, scores = pad_root(row.gather(1, chosen), 0), torch.cat(laws, 1)
        if len(row) == 1:
            row = row[0]
        else:  # a law for each node, as all rows share the places in the record
            scores = scores.gather(1, row.clamp(min=0)[..., None].expand(-1, -1, scores.shape[-1]))
            row = torch.arange(nodes + 1, device=row.device)
        # invalid nodes are children of the root, and may exceed the width
        ranks = shape.width if chance.is_cpu and bool(valid.all()) else max(shape.width, nodes)
        tree = dynamic_tree(parent, len(self.levels), ranks - 1)
        law = Law("without_replacement", row=row, scores=scores, ids=ids)
        value = torch.cat([pending[:, None], token.gather(1, chosen)], 1)
        return Draft(value, tree, law, pad_root(valid, True))


def pad_root(tensor: Tensor, value: int | bool) -> Tensor:
    """Return [B, N + 1], with `value` before the columns of a tensor [B, N]."""
    return torch.cat([torch.full_like(tensor[:, :1], value), tensor], 1)


def _rank(chance: Tensor) -> Tensor:
    """Return the rank of each chance [B, n] in falling order; ties by index."""
    order = chance.argsort(dim=1, descending=True, stable=True)
    return torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
