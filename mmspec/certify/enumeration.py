"""Enumeration of every draft and every decision of a rule on a tiny vocabulary, and the resulting distribution.

Distributions are context tables: a sequence over depths d = 0, 1, ... of float64 [V^d, V], where row c holds the
distribution of the value after the prefix whose base-V number is c. All results are probabilities in float64, without
sampling error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Drawn, Evidence, Law
from mmspec.core.round.rules.base import Rule, Weights
from mmspec.core.round.tree import Tree, dynamic_tree

Tables = Sequence[Tensor]


def random_tables(size: int, length: int, seed: int, *, peak: float = 1.0, zeros: float = 0.0) -> list[Tensor]:
    """Return `length` context tables; `peak` scales scores, 0 for flat laws, and `zeros` is the share of zeros."""
    generator = torch.Generator().manual_seed(seed)
    tables = []
    for depth in range(length):
        shape = (size**depth, size)
        scores = peak * torch.randn(shape, generator=generator, dtype=torch.float64)
        excluded = torch.rand(shape, generator=generator) < zeros
        excluded[torch.arange(len(excluded)), torch.randint(size, (len(excluded),), generator=generator)] = False
        tables.append(torch.softmax(scores.masked_fill(excluded, -torch.inf), -1))
    return tables


LAWS = ("random", "p with zeros", "q with zeros", "both with zeros", "equal", "disjoint", "far")


def contrasted_tables(kind: str, size: int, depth: int, seed: int) -> tuple[Tables, Tables]:
    """Return p over depth + 1 values and q over `depth`, of a kind in `LAWS`: their contrast decides which mistakes show."""
    p, q = random_tables(size, depth + 1, seed), random_tables(size, depth, seed + 100)
    if kind == "p with zeros":
        p = random_tables(size, depth + 1, seed, zeros=0.5)
    elif kind == "q with zeros":
        q = random_tables(size, depth, seed + 100, zeros=0.5)
    elif kind == "both with zeros":
        p, q = random_tables(size, depth + 1, seed, zeros=0.5), random_tables(size, depth, seed + 100, zeros=0.5)
    elif kind == "equal":
        q = p[:depth]
    elif kind == "disjoint":
        split = size // 2
        p, q = [_restricted(t, 0, split) for t in p], [_restricted(t, split, size) for t in q]
    elif kind == "far":
        p, q = random_tables(size, depth + 1, seed, peak=3.0), random_tables(size, depth, seed + 100, peak=3.0)
    return p, q


def _restricted(table: Tensor, start: int, stop: int) -> Tensor:
    part = table.clone()
    part[:, :start], part[:, stop:] = 0, 0
    return part / part.sum(-1, keepdim=True)


def complete_law(ends: Sequence[Tensor], p: Tables) -> Tensor:
    """Complete the emitted values (see `emission_laws`) with p to a joint distribution, float64 [cases, V^len(ends)]."""
    joint = torch.zeros(len(ends[0]), 1, dtype=torch.float64)
    for end, table in zip(ends, p, strict=True):
        joint = end + (joint[..., None] * table).flatten(1)
    return joint


def target_law(p: Tables) -> Tensor:
    """Return the target's own joint distribution over len(p) values, float64 [V^len(p)]."""
    joint = torch.ones(1, dtype=torch.float64)
    for table in p:
        joint = (joint[:, None] * table).flatten()
    return joint


def total_variation(law: Tensor, target: Tensor) -> float:
    """Return the largest total variation of any case [cases, M] from the target [M]."""
    return float((law - target).abs().sum(-1).max() / 2)


Grow = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(slots=True)
class EnumeratedDrafts:
    """Every draft of a tree."""

    value: Tensor  # int64 [R, N]
    code: Tensor  # int64 [R, N], the prefix number of each node
    valid: Tensor  # bool [R, N]
    chance: Tensor  # float64 [R], of the draft; 1 for each deterministic draft, which is a case of its own


def every_draft(tree: Tree, q: Tables, drawn: Drawn, grow: Grow | None = None) -> EnumeratedDrafts:
    """Enumerate the drafts of a static tree whose children are drawn from q. `grow` maps (value, valid, node) to bool
    [R], whether the node is drawn at all. It decides from earlier nodes, level by level and siblings in order; entries
    not drawn yet are -1. Children beyond the support of q are invalid too."""
    nodes = tree.nodes
    value = torch.full((1, nodes), -1)
    value[:, 0] = 0
    drafts = EnumeratedDrafts(
        value, torch.zeros_like(value), torch.ones(1, nodes, dtype=torch.bool), torch.ones(1, dtype=torch.float64)
    )
    for level in tree.levels:
        for node, parent in zip(level.node.tolist(), level.parent.tolist(), strict=True):
            earlier = [j for j in range(1, node) if tree.parent[0, j] == parent]
            drafts = _draw(drafts, node, parent, earlier, q[level.depth - 1], drawn, grow)
    drafts.value.clamp_(min=0)
    return drafts


def _draw(
    drafts: EnumeratedDrafts, node: int, parent: int, earlier: list[int], q: Tensor, drawn: Drawn, grow: Grow | None
) -> EnumeratedDrafts:
    size, share = q.shape[-1], q[drafts.code[:, parent]].clone()
    if drawn in ("deterministic", "none"):
        share = torch.ones_like(share)
    elif drawn == "without_replacement":
        for sibling in earlier:
            token = drafts.value[:, sibling].clamp_min(0)[:, None]
            share.scatter_(1, token, share.gather(1, token).where(~drafts.valid[:, sibling, None], 0.0))
    total = share.sum(-1, keepdim=True)
    exists = drafts.valid[:, parent] & (total[:, 0] > 0)
    exists = exists if grow is None else exists & grow(drafts.value, drafts.valid, node)
    share = share if drawn in ("deterministic", "none") else share / total
    share = torch.where(exists[:, None], share, torch.eye(size, dtype=share.dtype)[0])
    row, token = (share > 0).nonzero(as_tuple=True)
    value, code, valid = drafts.value[row], drafts.code[row], drafts.valid[row]
    value[:, node] = torch.where(exists[row], token, -1)
    code[:, node] = code[:, parent] * size + token
    valid[:, node] = exists[row]
    return EnumeratedDrafts(value, code, valid, drafts.chance[row] * share[row, token])


def as_inputs(
    drafts: EnumeratedDrafts, tree: Tree, p: Tables, q: Tables, drawn: Drawn, per_row: bool = False
) -> tuple[Draft, Evidence]:
    """Return the drafts as a batch, with the evidence and the q record of a real round."""
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
class RuleBehaviour:
    """A rule's complete behaviour on a tree."""

    rule: Rule
    drafts: EnumeratedDrafts
    draft: Draft  # the drafts as a batch
    evidence: Evidence
    weights: Weights
    reach: Tensor  # float64 [R, N], the probability that draft r is drawn and ends at node n
    case: Tensor  # int64 [R], of a draft: 0, or a case of its own for each deterministic draft


def enumerate_rule(
    rule: Rule,
    tree: Tree,
    p: Tables,
    q: Tables,
    *,
    drawn: Drawn = "without_replacement",
    grow: Grow | None = None,
    record: Tables | None = None,
    per_row: bool = False,
    drafts: EnumeratedDrafts | None = None,
) -> RuleBehaviour:
    """Run a rule on every draft and every decision over a static tree of depth D, with D + 1 tables p and D tables q.
    The rule's q record is `record`, None for q. `per_row` passes a tree a row; for `grow` see `every_draft`."""
    drafts = every_draft(tree, q, drawn, grow) if drafts is None else drafts
    draft, evidence = as_inputs(drafts, tree, p, record or q, drawn, per_row)
    rule = rule.rule_for(draft, evidence)
    rule.check(draft)
    weights = rule.weigh(evidence, draft)
    rows = len(drafts.value)
    case = torch.arange(rows) if drawn in ("deterministic", "none") else torch.zeros(rows, dtype=torch.long)
    reach = _reach(rule, weights, draft, tree, drafts.chance, per_row)
    return RuleBehaviour(rule, drafts, draft, evidence, weights, reach, case)


def joint_law(judged: RuleBehaviour, p: Tables) -> Tensor:
    """Return the distribution of the first D + 1 values of a round, completed with p: float64 [cases, V^(D + 1)]."""
    drafts, reach = judged.drafts, judged.reach
    rows, ending = len(drafts.value), []
    for node in range(judged.draft.tree.nodes):
        here = torch.full((rows,), node)
        law = judged.rule.residual(judged.evidence, judged.draft, judged.weights, here).double()
        law = torch.where(reach[:, node, None] > 0, law / law.sum(-1, keepdim=True), 0.0)
        ending.append(law * reach[:, node, None])
    return complete_law(emission_laws(torch.stack(ending, 1), drafts, judged.draft.tree, judged.case), p)


def emission_laws(ending: Tensor, drafts: EnumeratedDrafts, tree: Tree, case: Tensor) -> list[Tensor]:
    """Return the emitted values by length: per depth d float64 [cases, V^(d + 1)]. `ending`, float64 [R, N, V], is the
    probability that draft r is drawn, ends at node n and continues with the value; `case` is int64 [R]."""
    size, cases = ending.shape[-1], int(case.max()) + 1
    ends = [torch.zeros(cases, size ** (d + 1), dtype=torch.float64) for d in range(tree.max_depth + 1)]
    for node, d in enumerate(tree.depth[0].tolist()):
        column = drafts.code[:, node, None] * size + torch.arange(size)
        ends[d].index_put_((case[:, None], column), ending[:, node], accumulate=True)
    return ends


def inexactness(rule: Rule, tree: Tree, p: Tables, q: Tables, **how: object) -> float:
    """Return the worst total variation between the rule's output and the target's: below 1e-12 for an exact rule."""
    return total_variation(joint_law(enumerate_rule(rule, tree, p, q, **how), p), target_law(p))


def expected_accepted(rule: Rule, tree: Tree, p: Tables, q: Tables, **how: object) -> float:
    """Return the mean number of accepted drafted values a round."""
    judged = enumerate_rule(rule, tree, p, q, **how)
    return float((judged.reach * tree.depth).sum() / (judged.case.max() + 1))


def _reach(rule: Rule, weights: Weights, draft: Draft, tree: Tree, chance: Tensor, per_row: bool) -> Tensor:
    """Return the probability that each draft ends at each node, float64 [R, N], through the rule's own `select`."""
    nodes = tree.nodes
    passing = torch.arange(2 ** (nodes - 1))[:, None] >> torch.arange(nodes - 1) & 1
    uniform = torch.nn.functional.pad(torch.where(passing == 1, 0.25, 0.75), (1, 0), value=0.75)
    masks, kind = draft.valid.unique(dim=0, return_inverse=True)
    rows = len(masks) * len(uniform)
    # the selected node depends only on the set of passing tests
    some = Draft(
        draft.value.new_zeros(rows, nodes),
        _tree_of(tree, rows, per_row),
        draft.law,
        masks.repeat_interleave(len(uniform), 0),
    )
    half = Weights(uniform.new_full((rows, nodes), 0.5), weights.order)
    node = rule.select(half, uniform.repeat(len(masks), 1), some).node.view(len(masks), -1)
    threshold = weights.threshold.double().clamp(0, 1)[:, 1:]
    share = chance[:, None].expand(-1, len(passing))
    for column in range(nodes - 1):
        passes = threshold[:, column, None]
        share = share * torch.where(passing[:, column] == 1, passes, 1 - passes)
    return torch.zeros(len(threshold), nodes, dtype=torch.float64).scatter_add_(1, node[kind], share)


def _tree_of(tree: Tree, rows: int, per_row: bool) -> Tree:
    return dynamic_tree(tree.parent.expand(rows, -1).clone(), tree.max_depth, tree.max_rank) if per_row else tree
