"""Every draft of a tree with a copied path in it, and every decision about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mmspec.certify.enumeration import Grow, Tables, complete_law, every_draft, target_law, total_variation
from mmspec.core.drafting.merge import with_copied_paths
from mmspec.core.round.draft import Draft, Drawn, Evidence, Law
from mmspec.core.round.rules import Rule, Weights
from mmspec.core.round.tree import Tree, dynamic_tree


def union_drafts(
    tree: Tree,
    q: Tables,
    paths: Sequence[Sequence[int]],
    drawn: Drawn,
    grow: Grow | None = None,
    alone: bool = False,
    before: Callable[[Draft], Draft] = lambda draft: draft,
) -> tuple[Draft, Tensor]:
    """Every draft of the tree joined with the paths in all rows, and how likely each is, float64 [R].

    before: a change of the drafts before the paths join them, for mutants.
    """
    drafts = every_draft(tree, q, drawn, grow)
    rows = len(drafts.value)
    depth = tree.depth[0].tolist()
    inner = sorted({int(i) for i in tree.parent[0, 1:]})
    row = torch.full((tree.nodes,), -1)
    row[inner] = torch.arange(len(inner))
    scores = torch.stack([q[depth[i]][drafts.code[:, i]] for i in inner], 1).log()
    draft = Draft(drafts.value, tree, Law(drawn, row, scores), drafts.valid)
    return with_copied_paths(before(draft), [paths] * rows, [alone] * rows), drafts.chance


def evidence_of(draft: Draft, p: Tables) -> tuple[Evidence, Tensor]:
    """The target's law after every node, and the number of the prefix that ends there, int64 [B, N]."""
    rows, nodes = draft.value.shape
    size, code = p[0].shape[-1], torch.zeros(rows, nodes, dtype=torch.long)
    depth, parent = draft.tree.depth.expand(rows, -1), draft.tree.parent.expand(rows, -1)
    for node in range(1, nodes):
        code[:, node] = code.gather(1, parent[:, node, None])[:, 0] * size + draft.value[:, node]
    law = torch.zeros(rows, nodes, size, dtype=torch.float64)
    for d, table in enumerate(p):
        law = torch.where((depth == d)[..., None], table[code % len(table)], law)
    return Evidence(law.log()), code


def copied_inexactness(
    rule: Rule,
    tree: Tree,
    p: Tables,
    q: Tables,
    path: Sequence[int],
    drawn: Drawn = "without_replacement",
    **how: object,
) -> float:
    """Total variation of what a round emits from the target's law. p: one table more than the longest path of a draft has
    nodes behind the root.   how: see `union_drafts`.
    """
    return draft_inexactness(rule, *union_drafts(tree, q, [path], drawn, **how), p)


def draft_inexactness(rule: Rule, draft: Draft, chance: Tensor, p: Tables) -> float:
    """Total variation of what a round of these drafts, each as likely as its `chance`, emits from the target's law."""
    evidence, code = evidence_of(draft, p)
    rule = rule.rule_for(draft, evidence)
    rule.check(draft)
    weights = rule.weigh(evidence, draft)
    reach = reach_of(rule, weights, draft, chance)
    size = p[0].shape[-1]
    ends = [torch.zeros(1, size ** (d + 1), dtype=torch.float64) for d in range(len(p))]
    depth = draft.tree.depth.expand_as(code)
    for node in range(draft.tree.nodes):
        here = torch.full((draft.batch,), node)
        law = rule.residual(evidence, draft, weights, here)
        law = torch.where(reach[:, node, None] > 0, law / law.sum(-1, keepdim=True), 0.0) * reach[:, node, None]
        for d, end in enumerate(ends):
            rows = (depth[:, node] == d) & (reach[:, node] > 0)
            column = code[rows, node, None] * size + torch.arange(size)
            end[0].index_put_((column,), law[rows], accumulate=True)
    return total_variation(complete_law(ends, p), target_law(p))


def reach_of(rule: Rule, weights: Weights, draft: Draft, chance: Tensor) -> Tensor:
    """How likely each draft is drawn and ends at each node, float64 [R, N]: every pass and fail through `select`."""
    rows, nodes = draft.value.shape
    passing = torch.arange(2 ** (nodes - 1))[:, None] >> torch.arange(nodes - 1) & 1
    uniform = torch.nn.functional.pad(torch.where(passing == 1, 0.25, 0.75), (1, 0), value=0.75)
    times = len(uniform)
    tree = draft.tree
    parent = tree.parent.expand(rows, -1).repeat_interleave(times, 0)
    valid = None if draft.valid is None else draft.valid.repeat_interleave(times, 0)
    many = replace(
        draft,
        value=draft.value.repeat_interleave(times, 0),
        valid=valid,
        tree=dynamic_tree(parent, tree.max_depth, tree.max_rank),
    )
    half = Weights(torch.full((rows * times, nodes), 0.5), weights.order)
    node = rule.select(half, uniform.repeat(rows, 1), many).node.view(rows, times)
    threshold = weights.threshold.double().clamp(0, 1)[:, 1:]
    share = chance[:, None].expand(-1, times)
    for column in range(nodes - 1):
        one = threshold[:, column, None]
        share = share * torch.where(passing[:, column] == 1, one, 1 - one)
    return torch.zeros(rows, nodes, dtype=torch.float64).scatter_add_(1, node, share)
