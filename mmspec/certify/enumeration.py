"""Enumeration of every draft and every decision of a rule on a tiny vocabulary, compared with the target's joint law.

Laws are context tables: a sequence over depths d = 0, 1, ... of float64 [V^d, V], where row c holds the law of the value after
the prefix whose base-V number is c. All results are probabilities in float64, so there is no sampling error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Drawn, Evidence, Law
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.tree import Tree, dynamic_tree

Tables = Sequence[Tensor]


def random_tables(size: int, length: int, seed: int, *, peak: float = 1.0, zeros: float = 0.0) -> list[Tensor]:
    """Context tables of `length` values. peak: 0 is flat; zeros: share of the values that get probability 0."""
    generator = torch.Generator().manual_seed(seed)
    tables = []
    for depth in range(length):
        shape = (size**depth, size)
        scores = peak * torch.randn(shape, generator=generator, dtype=torch.float64)
        gone = torch.rand(shape, generator=generator) < zeros
        gone[torch.arange(len(gone)), torch.randint(size, (len(gone),), generator=generator)] = False
        tables.append(torch.softmax(scores.masked_fill(gone, -torch.inf), -1))
    return tables


LAWS = ("random", "p with zeros", "q with zeros", "both with zeros", "equal", "disjoint", "far")


def contrasted_tables(kind: str, size: int, depth: int, seed: int) -> tuple[Tables, Tables]:
    """p over depth + 1 values and q over `depth`, of one of the `LAWS`: how the two differ decides which mistakes show."""
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
    kept = table.clone()
    kept[:, :start], kept[:, stop:] = 0, 0
    return kept / kept.sum(-1, keepdim=True)


def complete_law(ends: Sequence[Tensor], p: Tables) -> Tensor:
    """The law float64 [cases, V^len(ends)] of what was emitted (see `ends_of`) and then goes on by p."""
    joint = torch.zeros(len(ends[0]), 1, dtype=torch.float64)
    for end, table in zip(ends, p, strict=True):
        joint = end + (joint[..., None] * table).flatten(1)
    return joint


def target_law(p: Tables) -> Tensor:
    """The target's own joint law over len(p) values, float64 [V^len(p)]."""
    joint = torch.ones(1, dtype=torch.float64)
    for table in p:
        joint = (joint[:, None] * table).flatten()
    return joint


def total_variation(law: Tensor, target: Tensor) -> float:
    """The largest total variation of any case [cases, M] from the target [M]."""
    return float((law - target).abs().sum(-1).max() / 2)


# the old path, for one version


Grow = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(slots=True)
class EnumeratedDrafts:
    """Every draft of a tree. value, code: int64 [R, N], token and prefix number of each node; valid: bool [R, N];
    chance: float64 [R], how likely the draft is. Deterministic drafts have chance 1 each: every one is a case of its own.
    """

    value: Tensor
    code: Tensor
    valid: Tensor
    chance: Tensor


def every_draft(tree: Tree, q: Tables, drawn: Drawn, grow: Grow | None = None) -> EnumeratedDrafts:
    """Enumerates the drafts of a static tree whose children are drawn from q.

    grow(value, valid, node) -> bool [R]: whether the node is drawn at all, decided from the nodes drawn before it (level by
    level, siblings in order); entries not drawn yet are -1. Children beyond the support of q are invalid too.
    """
    nodes = tree.nodes
    value = torch.full((1, nodes), -1)
    value[:, 0] = 0
    found = EnumeratedDrafts(
        value, torch.zeros_like(value), torch.ones(1, nodes, dtype=torch.bool), torch.ones(1, dtype=torch.float64)
    )
    for level in tree.levels:
        for node, parent in zip(level.node.tolist(), level.parent.tolist(), strict=True):
            earlier = [j for j in range(1, node) if tree.parent[0, j] == parent]
            found = _draw(found, node, parent, earlier, q[level.depth - 1], drawn, grow)
    found.value.clamp_(min=0)
    return found


def _draw(
    found: EnumeratedDrafts, node: int, parent: int, earlier: list[int], q: Tensor, drawn: Drawn, grow: Grow | None
) -> EnumeratedDrafts:
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
    return EnumeratedDrafts(value, code, valid, found.chance[row] * share[row, token])


def as_inputs(
    drafts: EnumeratedDrafts, tree: Tree, p: Tables, q: Tables, drawn: Drawn, per_row: bool = False
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
class RuleBehaviour:
    """A rule's whole behaviour on one tree. reach: float64 [R, N], how likely draft r is drawn and ends at node n.

    case: int64 [R], the case a draft belongs to: 0, or a case of its own for each deterministic draft.
    """

    rule: Rule
    drafts: EnumeratedDrafts
    draft: Draft
    evidence: Evidence
    weights: Weights
    reach: Tensor
    case: Tensor


def enumerate_rule(
    rule: Rule, tree: Tree, p: Tables, q: Tables, *, drawn: Drawn = "without_replacement", grow: Grow | None = None,
    record: Tables | None = None, per_row: bool = False, drafts: EnumeratedDrafts | None = None,
) -> RuleBehaviour:  # fmt: skip
    """Runs a rule on every draft and every decision.

    tree: static, depth D.   p: D + 1 tables.   q: D tables the children are drawn from.   record: the q record handed to
    the rule where it is not q.   per_row: pass the tree as a tree per row.   drafts: None for all of them.
    """
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
    """The law of the first D + 1 values that one round emits, completed with p: float64 [cases, V^(D + 1)]."""
    drafts, reach = judged.drafts, judged.reach
    rows, ending = len(drafts.value), []
    for node in range(judged.draft.tree.nodes):
        here = torch.full((rows,), node)
        law = judged.rule.residual(judged.evidence, judged.draft, judged.weights, here).double()
        law = torch.where(reach[:, node, None] > 0, law / law.sum(-1, keepdim=True), 0.0)
        ending.append(law * reach[:, node, None])
    return complete_law(emission_laws(torch.stack(ending, 1), drafts, judged.draft.tree, judged.case), p)


def emission_laws(ending: Tensor, drafts: EnumeratedDrafts, tree: Tree, case: Tensor) -> list[Tensor]:
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
    1e-12) for an exact rule. `how` as in `enumerate_rule`.
    """
    return total_variation(joint_law(enumerate_rule(rule, tree, p, q, **how), p), target_law(p))


def expected_accepted(rule: Rule, tree: Tree, p: Tables, q: Tables, **how: object) -> float:
    """Drafted values accepted per round, on average over drafts and decisions. `how` as in `enumerate_rule`."""
    judged = enumerate_rule(rule, tree, p, q, **how)
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
