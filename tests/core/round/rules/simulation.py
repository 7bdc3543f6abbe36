"""Is a rule exact over several rounds with the real random keys? Many rows of a Markov chain, and a chi-square test.

The target's law of a value is row `last value` of a table float64 [V, V], and so is the drafter's. Every row starts after
value 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.certify.samples import ChiSquare, chi_square
from mmspec.core.round.draft import Draft, Drawn, Evidence, Law, run_of
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules.base import Rule
from mmspec.core.round.tree import Tree
from mmspec.kernels.sampling import sample_categorical


@dataclass(slots=True)
class Rounds:
    """token: int64 [B, length].   first: int64 [B], how many of them the first round emitted."""

    token: Tensor
    first: Tensor


def decode_rounds(
    rule: Rule,
    tree: Tree,
    p: Tensor,
    q: Tensor,
    keys: Keys,
    length: int,
    drawn: Drawn = "without_replacement",
    record: Tensor | None = None,
) -> Rounds:
    """Decodes `length` values in every row. tree: static. record: the q record handed to the rule where it is not q."""
    rows = len(keys.seeds)
    token = torch.zeros(rows, length + tree.max_depth + 1, dtype=torch.long)
    count, last, first = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.long), None
    while first is None or int(count.min()) < length:
        draft = markov_draft(tree, last, q, keys, drawn, q if record is None else record)
        evidence = Evidence(p.log().float()[draft.value])
        judge = rule.rule_for(draft, evidence)
        judge.check(draft)
        weights = judge.weigh(evidence, draft)
        verdict = judge.select(weights, keys.uniform(Purpose.ACCEPT, tree.nodes), draft)
        verdict = judge.resample(evidence, draft, weights, verdict, keys)
        run, emitted = run_of(draft, verdict)
        # a finished row writes over its own surplus
        at = count.clamp_max(length)[:, None] + torch.arange(run.shape[1])
        token.scatter_(1, at, torch.where(count[:, None] < length, run, token.gather(1, at)))
        last = verdict.correction
        count += emitted
        first = emitted if first is None else first
        keys.round += 1
    return Rounds(token[:, :length], first)


def markov_draft(tree: Tree, last: Tensor, q: Tensor, keys: Keys, drawn: Drawn, record: Tensor) -> Draft:
    """A draft of every row [B] behind its last value, drawn from q by inversion; deterministic drafts take its modes."""
    value = last[:, None].repeat(1, tree.nodes)
    valid = torch.ones_like(value, dtype=torch.bool)
    uniform = keys.uniform(Purpose.DRAFT, tree.nodes)
    for level in tree.levels:
        for node, parent in zip(level.node.tolist(), level.parent.tolist(), strict=True):
            share = q[value[:, parent]]
            if drawn != "with_replacement":
                earlier = [j for j in range(1, node) if tree.parent[0, j] == parent]
                share = share.scatter(1, value[:, earlier], 0.0) if earlier else share
            valid[:, node] = valid[:, parent] & (share.sum(-1) > 0)
            pick = share.argmax(-1) if drawn == "deterministic" else sample_categorical(share, uniform[:, node])
            value[:, node] = pick
    if drawn == "deterministic":
        return Draft(value, tree, Law(drawn), valid)
    return Draft(value, tree, Law(drawn, torch.arange(tree.nodes), record.log().float()[value]), valid)


def joint_test(rounds: Rounds, p: Tensor) -> ChiSquare:
    """The joint law of all values of the run: V^length cells."""
    size, length = p.shape[-1], rounds.token.shape[1]
    code, expected = torch.zeros(len(rounds.token), dtype=torch.long), p[0]
    for column in range(length):
        code = code * size + rounds.token[:, column]
    for _ in range(length - 1):
        expected = (expected.reshape(-1, size)[..., None] * p).flatten()
    return chi_square(torch.bincount(code, minlength=size**length), expected * len(code))


def second_round_test(rounds: Rounds, p: Tensor) -> ChiSquare:
    """The first value of round two, given the length and the last value of round one: it must depend on the latter alone.

    This is where noise that survives a round shows. Needs length > the longest round.
    """
    size, longest = p.shape[-1], rounds.token.shape[1]
    last = rounds.token.gather(1, rounds.first[:, None] - 1)[:, 0]
    after = rounds.token.gather(1, rounds.first[:, None])[:, 0]
    group = rounds.first * size + last
    observed = torch.bincount(group * size + after, minlength=(longest + 1) * size * size).view(-1, size, size)
    total = observed.sum(-1, keepdim=True)
    return chi_square(observed, total * p, constraints=int((total > 0).sum()))
