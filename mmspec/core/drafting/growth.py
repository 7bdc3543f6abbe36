from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.drafting.dynamic import best_prefixes, dynamic_draft
from mmspec.core.drafting.guided import DraftGuide, LevelScores, LevelwiseState, drawable, guide_of
from mmspec.core.drafting.heap import BestFirst, best_first_draft
from mmspec.core.drafting.picks import pick_siblings, values_of
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import grow_by, show_drawn
from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.sampling import draw
from mmspec.core.round.tree import Tree, chain, static_tree


@dataclass(frozen=True, slots=True)
class DraftBudget:
    """The size of the next draft: `depth` levels for all rows, of which row b can use `rooms[b]`."""

    depth: int
    rooms: Sequence[int] | Tensor  # int64 [B] in a captured round, without host reads

    @property
    def is_empty(self) -> bool:
        return not isinstance(self.rooms, Tensor) and not any(self.rooms)


def grow_draft(state: LevelwiseState, target: object, shape: Shape, keys: Keys, budget: DraftBudget) -> Draft:
    """Return a draft of at most `budget.depth` levels. A row near its end drafts no further than it would alone; a
    captured round marks values beyond a row's room as invalid. The slots leave the drafter's cache again, to return
    with the target's states."""
    rooms, lengths = budget.rooms, (list(state.cache.lengths), state.cache.length)
    # siblings shared by all parents have a single distribution, which constraints on a path cannot change
    guide = None if getattr(shape, "shared", False) else guide_of(target)
    score = getattr(shape, "score", None)
    if isinstance(shape, BestFirst) and not target.greedy:
        draft = best_first_draft(state, target, shape, keys, rooms, guide)
    elif isinstance(shape, DynamicTree) and state.independent and guide is None and score is None:
        draft = best_prefixes(state, target, shape)
    elif isinstance(shape, DynamicTree):
        draft = dynamic_draft(state, target, shape, guide, score)
    elif isinstance(shape, Chain):
        longest = budget.depth if isinstance(rooms, Tensor) else max(rooms)
        draft = chain_draft(state, target, shape, keys, longest, guide)
    else:
        draft = static_draft(state, target, shape, keys, guide)
    state.cache.lengths, state.cache.length = lengths
    if isinstance(rooms, Tensor):
        inside = draft.tree.depth <= rooms[:, None]
        draft.valid = inside if draft.valid is None else draft.valid & inside
        return draft
    if draft.valid is not None and not isinstance(shape, Chain):
        draft.valid = _unless_all(draft.valid)
    if any(room < draft.tree.max_depth for room, alive in zip(rooms, target.live, strict=True) if alive):
        inside = draft.tree.depth <= torch.tensor(rooms, device=draft.value.device)[:, None]
        draft.valid = inside if draft.valid is None else draft.valid & inside
    return draft


class _LevelPlan:
    """The index tensors for growing a static tree, computed once per shape and device. `row` int64 [N] is the index of
    each node among the nodes with children, -1 for leaves. `levels` hold nodes [n], their parents among the expanded
    nodes [n], their ranks [n], those with children [m], ancestors bool [1, m, so far] and the number expanded before.
    """

    def __init__(self, tree: Tree):
        self.tree = tree
        device = tree.parent.device
        parent, depth, rank = (t[0].tolist() for t in (tree.parent, tree.depth, tree.sibling_rank))
        inner = sorted(set(parent[1:]), key=lambda n: (depth[n], n))
        self.row = torch.tensor([inner.index(n) if n in inner else -1 for n in range(tree.nodes)], device=device)
        self.level = torch.tensor([depth[n] if n in inner else -1 for n in range(tree.nodes)], device=device)
        self.levels = []
        expanded = [0]
        drafted: list[int] = []
        for level in range(1, tree.max_depth + 1):
            node = [n for n in range(tree.nodes) if depth[n] == level]
            keep = [i for i, n in enumerate(node) if n in inner]
            source = [expanded.index(parent[n]) for n in node]
            expanded = [node[i] for i in keep]
            before = len(drafted)
            drafted += expanded
            seen = tree.ancestor[:, expanded][:, :, drafted] if expanded else None
            lists = (node, source, [rank[n] for n in node], keep)
            self.levels.append((*(torch.tensor(x, dtype=torch.long, device=device) for x in lists), seen, before))


@lru_cache(maxsize=64)
def _level_plan(parents: tuple[int, ...], device: str) -> _LevelPlan:
    return _LevelPlan(static_tree(parents, device))


def static_draft(
    state: LevelwiseState, target: object, shape: StaticTree, keys: Keys, guide: DraftGuide | None = None
) -> Draft:
    """Return a draft of a fixed shape: top tokens for a greedy request, draws for a sampled request."""
    if shape.shared and not state.independent:
        raise ValueError(
            "shared: expected a drafter with independent levels, got a drafter whose levels depend on each "
            "other; use a shape with shared=False"
        )
    plan = _level_plan(shape.parents, str(target.device))
    batch, nodes = target.batch, plan.tree.nodes
    value = target.pending[:, None].repeat(1, nodes)
    valid = torch.ones(batch, nodes, dtype=torch.bool, device=value.device)
    laws, out, drawn = [], state.root[:, None], "deterministic" if target.greedy else shape.drawn
    scorer, independent = (
        LevelScores(state, target, guide, sampled=not target.greedy),
        state.independent and guide is None,
    )
    for level, (node, source, rank, keep, seen, before) in enumerate(plan.levels, 1):
        read = out[:, :1] if independent else out  # a distribution shared by all parents is scored once
        scores = scorer.scores(read, level)
        laws.append(scores if guide is None else drawable(scores)[0])
        own = scores if shape.shared else scores.expand(-1, out.shape[1], -1)
        ranked, token = pick_siblings(drawn, own, plan.tree.max_rank + 1, keys, level, state.ids)
        place = torch.zeros_like(source) if shape.shared else source
        value[:, node] = token[:, place, rank]
        valid[:, node] = ranked[:, place, rank].isfinite()
        if len(keep):
            out = state.expand(value[:, node[keep]], out[:, source[keep]], seen, before, level)
            scorer.descend(value[:, node[keep]], source[keep])
    if target.greedy:
        law = Law("deterministic")
    else:
        row = plan.level if independent else plan.row
        law = Law(shape.drawn, row=row, scores=torch.cat(laws, 1), reused=shape.shared, ids=state.ids)
    return Draft(value, plan.tree, law, valid)


def chain_draft(
    state: LevelwiseState, target: object, shape: Chain, keys: Keys, longest: int, guide: DraftGuide | None = None
) -> Draft:
    out, growing, picked = state.root[:, None], None, target.greedy or shape.drawn == "deterministic"
    tokens, valid, laws, scorer = [], [], [], LevelScores(state, target, guide, sampled=not picked)
    growth = shape.length.begin()
    uniform = None if picked else keys.uniform(Purpose.DRAFT, longest)
    for step in range(longest):
        scores = scorer.scores(out, step + 1)
        if guide is not None:
            scores, barren = drawable(scores)
            growing = ~barren[:, 0] if growing is None else growing & ~barren[:, 0]
        if growth is not None:
            more = grow_by(growth, step, scores[:, 0], state.feature(out, step + 1)[:, 0])
            growing = more if growing is None else growing & more
        if growing is not None:
            if not growing.any():  # all rows end here, so the pass can be shorter
                break
            valid.append(growing)
        scores = scores[:, 0]
        laws.append(scores)
        column = scores.argmax(-1) if picked else draw(scores, uniform[:, step])
        show_drawn(growth, scores, column)
        tokens.append(values_of(column, state.ids))
        if step + 1 < longest:
            out = state.expand(tokens[-1][:, None], out, None, step, step + 1)
            scorer.descend(tokens[-1][:, None], torch.zeros_like(scorer.parent))
    return draft_of_chain(target, tokens, [] if picked else laws, valid, state.ids)


def draft_of_chain(
    target: object, tokens: list[Tensor], laws: list[Tensor], valid: list[Tensor], ids: Tensor | None = None
) -> Draft:
    """Return a draft of a single path after the root, from lists by value: tokens int64 [B], scores [B, V or k] ([] for
    top values), validity bool [B] ([] for all valid). `ids` as in `Law`."""
    count, law = len(tokens), Law("deterministic")
    if laws:
        law = Law(
            "without_replacement", row=_chain_rows(count, str(target.device)), scores=torch.stack(laws, 1), ids=ids
        )
    mask = torch.stack([torch.ones_like(valid[0]), *valid], 1) if valid else None
    return Draft(torch.stack([target.pending, *tokens], 1), chain(count, target.device), law, mask)


@lru_cache(maxsize=64)
def _chain_rows(count: int, device: str) -> Tensor:
    return torch.tensor([*range(count), -1], device=device)


def _unless_all(valid: Tensor) -> Tensor | None:
    """Return None where all nodes are valid, which halves the rules' steps. Only on the CPU, to avoid a sync."""
    return None if valid.is_cpu and bool(valid.all()) else valid
