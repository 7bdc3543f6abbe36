from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mmspec.core.drafting.guided import DraftGuide, LevelScores, LevelwiseState
from mmspec.core.drafting.heap import NodeFilter, kept_nodes, show_chosen
from mmspec.core.drafting.picks import best_values, values_of
from mmspec.core.drafting.shapes import DynamicTree
from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.tree import dynamic_tree


def dynamic_draft(
    state: LevelwiseState,
    target: object,
    shape: DynamicTree,
    guide: DraftGuide | None = None,
    unlikely: NodeFilter | None = None,
) -> Draft:
    """Expand the `width` best nodes of a level, and select the best `nodes` of all candidates (EAGLE-2), except the
    `unlikely`."""
    width, batch, scorer = shape.width, target.batch, LevelScores(state, target, guide, sampled=False)

    def level_of(law: Tensor, before: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        step, child = best_values(law, width, state.ids)  # [B, n, W]
        total = before[..., None] + step
        if guide is not None:  # below a node without any allowed value, totals are NaN
            total = total.where(total > -torch.inf, -torch.inf)
        if unlikely is not None:
            total = total.where(kept_nodes(unlikely, total.exp(), law, depth, False), -torch.inf)
        return total.flatten(1), child.flatten(1)

    root = state.root[:, None]
    score, token = level_of(scorer.scores(root, 1), root.new_zeros(batch, 1, dtype=torch.float32), 1)
    parent = torch.zeros_like(token)
    scores, tokens, above = [score], [token], []  # above[l]: pool index of the parents of level l + 1
    frontier = torch.arange(width, device=token.device).expand(batch, -1)
    hidden = state.root[:, None].expand(-1, width, -1)
    ancestor = eye = torch.eye(width, dtype=torch.bool, device=token.device)[None]
    for level in range(1, shape.depth):
        stop = next((own for own in shape.stop if own.depth == level and own.is_reached(score, target.live)), None)
        if stop is not None:
            shape = shape.cut(level)
            shape = replace(shape, nodes=min(stop.nodes or shape.nodes, shape.nodes))
            break
        if unlikely is not None and score.is_cpu and not score.isfinite().any():
            break
        above.append(frontier)
        out = state.expand(token, hidden, ancestor, (level - 1) * width, level)
        scorer.descend(token, parent)
        total, child = level_of(scorer.scores(out, level + 1), score, level + 1)
        scores.append(total)
        tokens.append(child)
        if level + 1 == shape.depth:
            break
        score, best = total.topk(width, -1)
        parent = best // width
        token = tokens[-1].gather(1, best)
        hidden = out.gather(1, parent[..., None].expand(-1, -1, out.shape[-1]))
        seen = ancestor.expand(batch, -1, -1).gather(1, parent[..., None].expand(-1, -1, ancestor.shape[-1]))
        ancestor = torch.cat([seen, eye.expand(batch, -1, -1)], -1)
        frontier = best + width + (level - 1) * width * width
    first = torch.full_like(tokens[0], -1)
    parents = [first, *(origin.repeat_interleave(width, 1) for origin in above)]
    pool = (torch.cat(part, 1) for part in (scores, tokens, parents))
    return _keep_best(target.pending, *pool, shape, unlikely)


def best_prefixes(state: LevelwiseState, target: object, shape: DynamicTree) -> Draft:
    """Return the `nodes` likeliest prefixes under the product of the levels' distributions, `width` tokens of each.
    "Accelerating Speculative Decoding with Block Diffusion Draft Trees": a best-first search without host reads, since
    a prefix is at least as likely as its extensions."""
    score, last = state.root.new_zeros(target.batch, 1, dtype=torch.float32), None
    scores, tokens, parents, start = [], [], [], 0
    for level in range(1, shape.depth + 1):
        law = state.logits(state.root[:, None], level)[:, 0].log_softmax(-1)
        step, token = law.topk(min(shape.width, law.shape[-1]), -1)
        score, best = (
            (score[..., None] + step[:, None]).flatten(1).topk(min(shape.nodes, score.shape[1] * step.shape[1]))
        )
        scores.append(score)
        tokens.append(values_of(token, state.ids).gather(1, best % step.shape[1]))
        parents.append(torch.full_like(best, -1) if last is None else last + best // step.shape[1])
        last, start = start, start + best.shape[1]
    return _keep_best(target.pending, torch.cat(scores, 1), torch.cat(tokens, 1), torch.cat(parents, 1), shape)


def _keep_best(
    pending: Tensor,
    scores: Tensor,
    tokens: Tensor,
    parents: Tensor,
    shape: DynamicTree,
    unlikely: NodeFilter | None = None,
) -> Draft:
    """Return the draft of the `nodes` best candidates of a pool in which parents precede children. `pending` int64 [B]
    is the root; scores float32, tokens and parents int64 are [B, P], parents by their index in the pool, -1 for the
    root. With the filter `unlikely` a draft has no more nodes than the row with the most candidates."""
    nodes = min(shape.nodes, scores.shape[1])
    if unlikely is not None and scores.is_cpu:
        nodes = min(nodes, max(int(scores.isfinite().sum(1).max()), 1))
    pool = scores.topk(nodes, -1).indices.sort(-1).values
    show_chosen(unlikely, pool)
    origin = parents.gather(1, pool)
    at = torch.searchsorted(pool, origin).clamp(max=nodes - 1)
    # after a tie a child may be selected without its parent: it becomes an invalid child of the root
    orphan = (origin >= 0) & (pool.gather(1, at) != origin)
    parent = torch.where((origin < 0) | orphan, 0, at + 1)
    parent = torch.cat([torch.zeros_like(parent[:, :1]), parent], 1)
    value = torch.cat([pending[:, None], tokens.gather(1, pool)], 1)
    valid = torch.cat([torch.ones_like(orphan[:, :1]), ~orphan & scores.gather(1, pool).isfinite()], 1)
    return Draft(value, dynamic_tree(parent, shape.depth, nodes), Law("deterministic"), valid)
