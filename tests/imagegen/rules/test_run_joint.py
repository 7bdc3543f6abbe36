"""Joint verification of runs: what the paper's steps do, and how far from the target they lead."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from mmspec.certify.enumeration import expected_accepted, inexactness, random_tables
from mmspec.core.round.rules import BlockVerification, TokenWise
from mmspec.core.round.rules.laws import laws_of
from mmspec.core.round.tree import chain
from mmspec.imagegen.rules.run_joint import RunJoint
from tests.imagegen.rules.cases import CHAIN, WITHOUT, case


def runs_of(p: list[float], longest: int | None) -> list[list[int]]:
    runs: list[list[int]] = []
    for i, value in enumerate(p):
        if runs and value >= p[i - 1] and len(runs[-1]) != longest:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def kept(p: list[float], ratio: list[float], alpha: float) -> list[float]:
    """How likely at least 1, 2, ... values of one run stand, step by step over all values of its one uniform."""
    start = len(p) - 1
    while sum(p[start:]) < alpha * sum(p):
        start -= 1
    start = next((i for i in range(start) if p[i] == 0), start)
    bar = [min(1.0, math.prod(ratio[start:n] if n > start else ratio[:n])) for n in range(1, len(p) + 1)]
    found = [0.0] * len(p)
    for low, high in pairwise(sorted({0.0, 1.0, *bar})):
        length = next((n for n in range(len(p), 0, -1) if (low + high) / 2 < bar[n - 1]), 0)  # shortened from the right
        found = [chance + (high - low) * (n <= length) for n, chance in enumerate(found, 1)]
    return found


@pytest.mark.parametrize("alpha, longest", ((0.8, None), (1.0, None), (0.5, 3), (0.8, 1)))
def test_thresholds_are_the_papers_steps(alpha: float, longest: int | None) -> None:
    draft, evidence = case(CHAIN, WITHOUT, rows=40, size=12)
    evidence.scores, draft.law.scores = evidence.scores.double(), draft.law.scores.double()
    found = RunJoint(alpha, longest).weigh(evidence, draft).threshold[:, 1:]
    laws = laws_of(evidence, draft)
    for row in range(40):
        p, q = laws.child_p[row, 1:].tolist(), laws.child_q[row, 1:].tolist()
        ratio = [a / b for a, b in zip(p, q, strict=True)]
        for run in runs_of(p, longest):
            stands = found[row, run].cumprod(-1)
            expected = kept([p[i] for i in run], [ratio[i] for i in run], alpha)
            torch.testing.assert_close(stands, torch.tensor(expected, dtype=stands.dtype))


def test_enumeration_shows_that_it_is_not_exact() -> None:
    away = {}
    for alpha in (0.8, 1.0):
        away[alpha] = [
            inexactness(RunJoint(alpha), chain(3), random_tables(4, 4, seed), random_tables(4, 3, seed + 100))
            for seed in range(3)
        ]
    assert min(away[0.8]) > 0.02 and min(away[1.0]) > 0.002  # several percent, and less with nothing untested
    for seed in range(3):
        p, q = random_tables(4, 4, seed), random_tables(4, 3, seed + 100)
        assert inexactness(RunJoint(longest=1), chain(3), p, q) < 1e-12
        assert inexactness(BlockVerification(), chain(3), p, q) < 1e-12
        accepted = [expected_accepted(rule, chain(3), p, q) for rule in (TokenWise(), RunJoint(1.0), RunJoint())]
        assert accepted[0] < accepted[1] <= accepted[2] + 1e-12


def test_wrong_settings_are_refused() -> None:
    for wrong in (dict(alpha=0.0), dict(alpha=1.1), dict(longest=0)):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
            RunJoint(**wrong)
