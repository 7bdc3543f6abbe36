"""Is a rule exact? Every draft and every decision on a tiny vocabulary, enumerated, against the target's joint law.

Laws are context tables (see `context_tables`). All results are probabilities in float64: there is no sampling error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.context_tables import Tables, completed, target_law, total_variation
from mmspec.core.context_tables import random_tables as random_tables  # the old path, for one version
from mmspec.core.draft import Draft, Drawn, Law
from mmspec.core.evidence import Evidence
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.tree import Tree, dynamic_tree

Grow = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(slots=True)
class Drafts:
    """Every draft of a tree. value, code: int64 [R, N], token and prefix number of each node; valid: bool [R, N];
    chance: float64 [R], how likely the draft is. Deterministic drafts have chance 1 each: every one is a case of its own.
    """

    value: Tensor
    code: Tensor
    valid: Tensor
    chance: Tensor


def every_draft(tree: Tree, q: Tables, drawn: Drawn, grow: Grow | None = None) -> Drafts:
    """Enumerates the drafts of a static tree whose children are drawn from q.

    grow(value, valid, node) -> bool [R]: whether the node is drawn at all, decided from the nodes drawn before it (level by
    level, siblings in order); entries not drawn yet are -1. Children beyond the support of q are invalid too.
    """
    nodes = tree.nodes
    value = torch.full((1, nodes), -1)
    value[:, 0] = 0
    found = Drafts(
        value, torch.zeros_like(value), torch.ones(1, nodes, dtype=torch.bool), torch.ones(1, dtype=torch.float64)
    )
    for level in tree.levels:
        for node, parent in zip(level.node.tolist(), level.parent.tolist(), strict=True):
            earlier = [j for j in range(1, node) if tree.parent[0, j] == parent]
            found = _draw(found, node, parent, earlier, q[level.depth - 1], drawn, grow)
    found.value.clamp_(min=0)
    return found


def _draw(
    found: Drafts, node: int, parent: int, earlier: list[int], q: Tensor, drawn: Drawn, grow: Grow | None
) -> Drafts:
    size, share = q.shape[-1], q[found.code[:, parent]].clone()
    if drawn in ("deterministic", "none"):
        share = torch.ones_like(share)
    elif drawn == "without_replacement":
        for sibling in earlier:
            token = found.value[:, sibling].clamp_min(0)[:, None]
            share.scatter_(1, token, share.gather(1, token).where(~found.valid[:, sibling, None], 0.0))
    total = share.sum(-1, keepdim=True)
    there = found.valid[:, parent] & (total[:, 0] > 0)
    there = there if grow is None else there & grow(found.value, found.valid, node)
    share = share if drawn in ("deterministic", "none") else share / total
    share = torch.where(there[:, None], share, torch.eye(size, dtype=share.dtype)[0])
    row, token = (share > 0).nonzero(as_tuple=True)
    value, code, valid = found.value[row], found.code[row], found.valid[row]
    value[:, node] = torch.where(there[row], token, -1)
    code[:, node] = code[:, parent] * size + token
    valid[:, node] = there[row]
    return Drafts(value, code, valid, found.chance[row] * share[row, token])


def as_inputs(
    drafts: Drafts, tree: Tree, p: Tables, q: Tables, drawn: Drawn, per_row: bool = False
) -> tuple[Draft, Evidence]:
    """The drafts as one batch, with the evidence and the q record a real round would have."""
    shape = _tree_of(tree, len(drafts.value), per_row)
    depth = tree.depth[0].tolist()
    known = drawn not in ("deterministic", "none")
    scores = torch.stack([p[d][drafts.code[:, i]] for i, d in enumerate(depth)], 1).log()
    if not known:
        return Draft(drafts.value, shape, Law(drawn), drafts.valid), Evidence(scores)
    inner = sorted({int(i) for i in tree.parent[0, 1:]})
    row = torch.full((tree.nodes,), -1)
    row[inner] = torch.arange(len(inner))
    record = torch.stack([q[depth[i]][drafts.code[:, i]] for i in inner], 1).log() if inner else None
    return Draft(drafts.value, shape, Law(drawn, row, record), drafts.valid), Evidence(scores)


@dataclass(slots=True)
class Judged:
    """A rule's whole behaviour on one tree. reach: float64 [R, N], how likely draft r is drawn and ends at node n.

    case: int64 [R], the case a draft belongs to: 0, or a case of its own for each deterministic draft.
    """

    rule: Rule
    drafts: Drafts
    draft: Draft
    evidence: Evidence
    weights: Weights
    reach: Tensor
    case: Tensor


def judge_all(
    rule: Rule, tree: Tree, p: Tables, q: Tables, *, drawn: Drawn = "without_replacement", grow: Grow | None = None,
    record: Tables | None = None, per_row: bool = False, drafts: Drafts | None = None,
) -> Judged:  # fmt: skip
    """Runs a rule on every draft and every decision.

    tree: static, depth D.   p: D + 1 tables.   q: D tables the children are drawn from.   record: the q record handed to
    the rule where it is not q.   per_row: pass the tree as a tree per row.   drafts: None for all of them.
    """
    drafts = every_draft(tree, q, drawn, grow) if drafts is None else drafts
    draft, evidence = as_inputs(drafts, tree, p, record or q, drawn, per_row)
    rule = rule.on(draft, evidence)
    rule.check(draft)
    weights = rule.weigh(evidence, draft)
    rows = len(drafts.value)
    case = torch.arange(rows) if drawn in ("deterministic", "none") else torch.zeros(rows, dtype=torch.long)
    reach = _reach(rule, weights, draft, tree, drafts.chance, per_row)
    return Judged(rule, drafts, draft, evidence, weights, reach, case)


def joint_law(judged: Judged, p: Tables) -> Tensor:
    """The law of the first D + 1 values that one round emits, completed with p: float64 [cases, V^(D + 1)]."""
    drafts, reach = judged.drafts, judged.reach
    rows, ending = len(drafts.value), []
    for node in range(judged.draft.tree.nodes):
        here = torch.full((rows,), node)
        law = judged.rule.residual(judged.evidence, judged.draft, judged.weights, here).double()
        law = torch.where(reach[:, node, None] > 0, law / law.sum(-1, keepdim=True), 0.0)
        ending.append(law * reach[:, node, None])
    return completed(ends_of(torch.stack(ending, 1), drafts, judged.draft.tree, judged.case), p)


def ends_of(ending: Tensor, drafts: Drafts, tree: Tree, case: Tensor) -> list[Tensor]:
    """What a round emits, by length: per depth d float64 [cases, V^(d + 1)].

    ending: float64 [R, N, V], how likely draft r is drawn, ends at node n and goes on with the value.   case: int64 [R].
    """
    size, cases = ending.shape[-1], int(case.max()) + 1
    ends = [torch.zeros(cases, size ** (d + 1), dtype=torch.float64) for d in range(tree.max_depth + 1)]
    for node, d in enumerate(tree.depth[0].tolist()):
        column = drafts.code[:, node, None] * size + torch.arange(size)
        ends[d].index_put_((case[:, None], column), ending[:, node], accumulate=True)
    return ends


def inexactness(rule: Rule, tree: Tree, p: Tables, q: Tables, **how: object) -> float:
    """Total variation between what the rule emits and what the target would, the worst case; 0 up to rounding (below
    1e-12) for an exact rule. `how` as in `judge_all`.
    """
    return total_variation(joint_law(judge_all(rule, tree, p, q, **how), p), target_law(p))


def expected_accepted(rule: Rule, tree: Tree, p: Tables, q: Tables, **how: object) -> float:
    """Drafted values accepted per round, on average over drafts and decisions. `how` as in `judge_all`."""
    judged = judge_all(rule, tree, p, q, **how)
    return float((judged.reach * tree.depth).sum() / (judged.case.max() + 1))


def _reach(rule: Rule, weights: Weights, draft: Draft, tree: Tree, chance: Tensor, per_row: bool) -> Tensor:
    """How likely each draft ends at each node, float64 [R, N]: every pass and fail, through the rule's own `select`."""
    nodes = tree.nodes
    passing = torch.arange(2 ** (nodes - 1))[:, None] >> torch.arange(nodes - 1) & 1
    uniform = torch.nn.functional.pad(torch.where(passing == 1, 0.25, 0.75), (1, 0), value=0.75)
    masks, kind = draft.valid.unique(dim=0, return_inverse=True)
    rows = len(masks) * len(uniform)
    # who is selected depends on which tests pass and on nothing else
    some = Draft(
        draft.value.new_zeros(rows, nodes), _tree_of(tree, rows, per_row), draft.law,
        masks.repeat_interleave(len(uniform), 0),
    )  # fmt: skip
    half = Weights(uniform.new_full((rows, nodes), 0.5), weights.order)
    node = rule.select(half, uniform.repeat(len(masks), 1), some).node.view(len(masks), -1)
    threshold = weights.threshold.double().clamp(0, 1)[:, 1:]
    share = chance[:, None].expand(-1, len(passing))
    for column in range(nodes - 1):
        pass_one = threshold[:, column, None]
        share = share * torch.where(passing[:, column] == 1, pass_one, 1 - pass_one)
    return torch.zeros(len(threshold), nodes, dtype=torch.float64).scatter_add_(1, node[kind], share)


def _tree_of(tree: Tree, rows: int, per_row: bool) -> Tree:
    return dynamic_tree(tree.parent.expand(rows, -1).clone(), tree.max_depth, tree.max_rank) if per_row else tree
