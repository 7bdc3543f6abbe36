"""The distribution of a step that draws its own random numbers, by many draws and a chi-square test."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from mmspec.certify.cases import CertifyCase
from mmspec.certify.certificate import POWER
from mmspec.certify.independence import NeighbourRound
from mmspec.certify.step import AcceptStep, StepAnswer, StepQuestion
from mmspec.kernels.sampling import sample_categorical


@dataclass(slots=True)
class ChiSquare:
    """Pearson's statistic and the degrees of freedom."""

    statistic: float
    freedom: int

    @property
    def limit(self) -> float:
        """The largest passing statistic, freedom + 10 sqrt(2 freedom): about ten sigma."""
        return self.freedom + 10 * (2 * self.freedom) ** 0.5

    @property
    def passed(self) -> bool:
        return self.statistic <= self.limit


def chi_square(observed: Tensor, expected: Tensor, constraints: int = 1) -> ChiSquare:
    """Apply Pearson's test. Cells below 5 expected counts are merged; a count at probability 0 fails by itself."""
    observed, expected = observed.double().flatten(), expected.double().flatten()
    if bool(((expected == 0) & (observed > 0)).any()):
        return ChiSquare(float("inf"), 1)
    rare = expected < 5
    if bool(rare.any()):
        observed = torch.cat((observed[~rare], observed[rare].sum()[None]))
        expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    seen = expected > 0
    statistic = ((observed - expected).square() / expected)[seen].sum()
    return ChiSquare(float(statistic), max(int(seen.sum()) - constraints, 1))


@dataclass(frozen=True, slots=True)
class SampledLaw:
    """The samples of a case."""

    counts: Tensor  # float64 [cases, V^(D + 1)], of each run of values; each deterministic draft is a case
    test: ChiSquare  # against the target
    accepted: float  # mean number of accepted drafted tokens a round
    stale: float  # as in `EmittedLaw`

    @property
    def law(self) -> Tensor:
        return self.counts / self.counts.sum(-1, keepdim=True)

    def fits(self, law: Tensor) -> ChiSquare:
        """Apply the same test against another distribution, float64 [cases, V^(D + 1)]."""
        return _test(self.counts, law)

    @property
    def visible(self) -> float:
        """The total variation from which on the test fails with a chance of 99 %."""
        return visible_distance(int(self.counts.sum()), self.test.freedom)


def _test(counts: Tensor, law: Tensor) -> ChiSquare:
    return chi_square(counts, law * counts.sum(-1, keepdim=True), constraints=len(counts))


def visible_distance(count: int, freedom: int) -> float:
    """Return the smallest total variation that `count` draws detect with a chance of `POWER`, for any distribution. A
    distribution off by TV has sum (p' - p)^2 / p >= 4 TV^2. So the statistic is about normal with mean f + 4 n TV^2 and
    variance 2 f + 16 n TV^2. It must exceed the limit f + 10 sqrt(2 f)."""
    z, low, high = NormalDist().inv_cdf(POWER), 0.0, 1.0
    for _ in range(60):
        tv = (low + high) / 2
        extra = 4 * count * tv * tv
        seen = extra - 10 * sqrt(2 * freedom) > z * sqrt(2 * freedom + 4 * extra)
        low, high = (low, tv) if seen else (tv, high)
    return high


def sample(
    step: AcceptStep,
    case: CertifyCase,
    count: int,
    batch: int,  # rows a call
    seed: int,
    company: NeighbourRound | None = None,  # a round to put beside every row
    before: NeighbourRound | None = None,  # a round for a call before every call
) -> SampledLaw:
    """Draw `count` drafts and rounds, and complete each with p to D + 1 values. Deterministic drafts take turns. The
    step's draws come from the global generators of torch, numpy and Python, which are seeded here and restored; a step
    that takes uniforms receives random uniforms."""
    dice = torch.Generator().manual_seed(seed)
    size, tree = case.size, case.shape.tree
    cells, cases = size ** (tree.max_depth + 1), int(case.which.max()) + 1
    counts, depth_sum, stale = torch.zeros(cases * cells, dtype=torch.float64), 0, 0
    with seeded(seed):
        for start in range(0, count, batch):
            rows = _draft_rows(case, start, min(batch, count - start), dice)
            if before is not None:
                step(before.question, None if step.draws else before.uniforms)
            answer = _ask(step, case.question.rows(rows), company, dice)
            run = _completed(case, *_emitted_values(case, rows, answer, dice), dice)
            counts += torch.bincount(case.which[rows] * cells + run, minlength=cases * cells)
            depth_sum += int(tree.depth[0][answer.node].sum())
            stale += int((answer.kept != answer.node).sum())
    counts = counts.view(cases, cells)
    return SampledLaw(counts, _test(counts, case.target.expand(cases, -1)), depth_sum / count, stale / count)


def _ask(step: AcceptStep, question: StepQuestion, company: NeighbourRound | None, dice: torch.Generator) -> StepAnswer:
    rows = len(question.tokens)
    uniforms = torch.rand(rows, len(question.parents) + 1, generator=dice, dtype=torch.float64)
    if company is None:
        return step(question, None if step.draws else uniforms)
    others = company.question.rows(torch.zeros(rows, dtype=torch.long))
    turns = torch.stack((torch.arange(rows), torch.arange(rows) + rows), 1).flatten()  # row, company, row, company
    both = torch.cat((uniforms, company.uniforms.expand(rows, -1)))[turns]
    answer = step(question.beside(others).rows(turns), None if step.draws else both)
    return StepAnswer(answer.node[::2], answer.value[::2], answer.kept[::2])


def _completed(case: CertifyCase, run: Tensor, length: Tensor, dice: torch.Generator) -> Tensor:
    for d in range(case.shape.tree.max_depth + 1):
        here = (length == d).nonzero()[:, 0]
        u = torch.rand(len(here), generator=dice, dtype=torch.float64)
        run[here] = run[here] * case.size + sample_categorical(case.p[d][run[here]], u)
        length[here] += 1
    return run


def _draft_rows(case: CertifyCase, start: int, count: int, dice: torch.Generator) -> Tensor:
    if case.shape.drawn == "deterministic":
        return torch.arange(start, start + count) % len(case.drafts.value)
    return torch.multinomial(case.drafts.chance, count, replacement=True, generator=dice)


def _emitted_values(
    case: CertifyCase, rows: Tensor, answer: StepAnswer, dice: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the base-V number of the emitted values, int64 [R], and their number; a stale state adds a value."""
    code, size, depth = case.drafts.code[rows], case.size, case.shape.tree.depth[0]
    own = torch.arange(len(rows))
    run, length = code[own, answer.node] * size + answer.value, depth[answer.node] + 1
    wrong = ((answer.kept != answer.node) & (length <= case.shape.tree.max_depth)).nonzero()[:, 0]
    for d in range(case.shape.tree.max_depth + 1):
        here = wrong[depth[answer.kept[wrong]] == d]
        context = code[here, answer.kept[here]] * size + answer.value[here]
        u = torch.rand(len(here), generator=dice, dtype=torch.float64)
        run[here] = run[here] * size + sample_categorical(case.p[d + 1][context], u)
        length[here] += 1
    return run, length


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    import numpy

    states = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng():
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            numpy.random.set_state(states[1])
