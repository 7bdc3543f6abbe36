"""The examination of a step that draws its own random numbers."""

from __future__ import annotations

from math import isfinite

from mmspec.certify.cases import Case
from mmspec.certify.law import distance
from mmspec.certify.manners import Company, companies
from mmspec.certify.outcome import BATCH, MEMORY, STATE, Outcome, Told
from mmspec.certify.samples import Sampled, sample
from mmspec.certify.step import Step

ROWS = 512  # a call
ALONE = 2000  # rows that are asked one by one


def by_samples(step: Step, several: list[Case], count: int, told: Told) -> Outcome:
    """Every case `count` times; what passes, the first case again, beside and behind rounds that accept and reject."""
    out = Outcome(told)
    out.drawn = [_sampled(out, step, case, count, seed) for seed, case in enumerate(several)]
    if any(one.stale for one in out.drawn):
        out.blame = STATE
    if not out.passed:
        return out
    first = several[0]
    for seed, other in enumerate(companies(first.shape, first.size), start=100):
        behind = STATE if other.name == "rejected" else MEMORY
        for blame, how in ((behind, {"before": other}), (BATCH, {"company": other})):
            if not _sampled(out, step, first, count, seed, **how).test.passed:
                out.blame = blame
                return out
    return out


def right_alone(step: Step, several: list[Case], drawn: list[Sampled]) -> bool:
    """Whether rows that are asked one by one have the target's law, as far as what failed would have shown with so few."""
    worst = max(range(len(several)), key=lambda i: drawn[i].test.statistic / drawn[i].test.limit)
    seen, count = drawn[worst].test, int(drawn[worst].counts.sum())
    alone = sample(step.fresh(), several[worst], min(count, ALONE), 1, 200)
    shows = (seen.statistic - seen.freedom) / count > 4 * alone.visible**2  # see `visible_distance`
    return shows and alone.test.passed


def _sampled(out: Outcome, step: Step, case: Case, count: int, seed: int, **how: Company) -> Sampled:
    one = sample(step.fresh(), case, count, ROWS, seed, **how)
    statistic = one.test.statistic if isfinite(one.test.statistic) else None
    out.keep(case, one.law, asked=count, regions=None, accepted=one.accepted, distance=distance(case, one.law),
             passed=one.test.passed, statistic=statistic, freedom=one.test.freedom, limit=one.test.limit,
             visible=one.visible)  # fmt: skip
    return one
