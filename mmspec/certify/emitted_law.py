"""The joint distribution of the values that a step emits, from the probability of each of its answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.certify.cases import CertifyCase
from mmspec.certify.enumeration import complete_law, emission_laws, total_variation
from mmspec.certify.step import StepAnswer


@dataclass(frozen=True, slots=True)
class EmittedLaw:
    """The distribution of the first D + 1 emitted values."""

    law: Tensor  # float64 [cases, V^(D + 1)]
    accepted: float  # mean number of accepted drafted tokens a round
    stale: float  # share of rounds whose state keeps other tokens than were accepted


def law_of_answers(case: CertifyCase, row: Tensor, weight: Tensor, answer: StepAnswer) -> EmittedLaw:
    """Return the distribution of C answers, each to the draft `row` int64 [C] with probability `weight` float64 [C]
    given the draft. The values after the round are drawn from p in the emitted context. Where the state ends with
    another token than the last accepted token, the first of them is drawn in that wrong context."""
    drafts, tree = case.drafts, case.shape.tree
    depth, size = tree.depth[0], case.size
    mass = weight * drafts.chance[row]
    right = answer.kept == answer.node
    ending = torch.zeros(len(drafts.value), tree.nodes, size, dtype=torch.float64)
    ending.index_put_((row, answer.node, answer.value), mass, accumulate=True)
    last = depth[answer.node] == tree.max_depth  # no later value is among the first D + 1
    moved = ~right & ~last
    ending.index_put_((row[moved], answer.node[moved], answer.value[moved]), -mass[moved], accumulate=True)
    ends = emission_laws(ending, drafts, tree, case.which)
    for index in moved.nonzero()[:, 0].tolist():
        r, node, value, state = (int(x[index]) for x in (row, answer.node, answer.value, answer.kept))
        context = int(drafts.code[r, state]) * size + value
        law = case.p[int(depth[state]) + 1][context]
        start = (int(drafts.code[r, node]) * size + value) * size
        ends[int(depth[node]) + 1][case.which[r], start : start + size] += mass[index] * law
    total = float(mass.sum())
    return EmittedLaw(
        complete_law(ends, case.near),
        float((mass * depth[answer.node]).sum()) / total,
        float(mass[~right].sum()) / total,
    )


def distance(case: CertifyCase, law: Tensor) -> float:
    """Return the total variation from the target, in the worst case."""
    return total_variation(law, case.target)


def emits_impossible(case: CertifyCase, answer: StepAnswer) -> bool:
    """Return whether any answer emits a value of target probability 0; the answers are to all drafts in order."""
    question, tree = case.question, case.shape.tree
    rows = torch.arange(len(answer.node))
    if bool((question.p[rows, answer.node, answer.value] <= 0).any()):
        return True
    parent = tree.parent[0]
    node = answer.node
    while bool((node > 0).any()):
        token = question.tokens[rows, (node - 1).clamp_min(0)]
        if bool(((node > 0) & (question.p[rows, parent[node], token] <= 0)).any()):
            return True
        node = parent[node]
    return False
