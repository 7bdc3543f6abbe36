"""The examination of a step that takes its uniforms: all drafts, all uniforms, in the worst of companies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mmspec.certify.cases import Case
from mmspec.certify.certificate import TOLERANCE
from mmspec.certify.law import distance, impossible, law_of_answers
from mmspec.certify.manners import HIGH, Company, Manners, ask_beside, companies
from mmspec.certify.outcome import BATCH, MEMORY, STATE, Outcome, Told
from mmspec.certify.regions import regions
from mmspec.certify.step import Answer, Step

AT_ONCE = 1 << 15  # rows a call
Ask = Callable[[Tensor, Tensor], Answer]


def by_regions(step: Step, several: list[Case], manners: Manners, told: Told) -> Outcome:
    """A step that looks at its company or remembers is asked about the first case alone, in what changes its answers.

    Raises Uneven where regions do not come to an end.
    """
    out, first = Outcome(told), several[0]
    if not manners.memoryless:
        out.blame = STATE if manners.grudge else MEMORY
        for other in companies(first.shape, first.size):
            _integrate(out, first, partial(_after, step, first, other))
    elif manners.moved_by:
        out.blame = BATCH
        for other, front in manners.moved_by:
            _integrate(out, first, partial(_beside, step, first, other, front))
    else:
        stale = [_integrate(out, case, partial(_together, step, case)) for case in several]
        out.blame = STATE if max(stale) else None
        if out.passed:
            out.notes += _ends(step, several)
    return out


def _integrate(out: Outcome, case: Case, ask: Ask) -> float:
    """One case; returns the share of rounds whose state keeps other tokens than were accepted."""
    nodes, size = case.shape.tree.nodes, case.size

    def codes(rows: Tensor, points: Tensor) -> Tensor:
        # beyond the largest float32 below 1 there is no uniform for a step that computes in it
        return ask(rows, points.clamp_max(HIGH)).codes(nodes, size)

    found = regions(codes, len(case.drafts.value), nodes)
    law = law_of_answers(case, found.row, found.volume, Answer.of_codes(found.code, nodes, size))
    off = distance(case, law.law)
    out.keep(case, law.law, asked=found.asked, regions=len(found.row), accepted=law.accepted, distance=off,
             passed=off <= TOLERANCE)  # fmt: skip
    return law.stale


def _together(step: Step, case: Case, rows: Tensor, points: Tensor) -> Answer:
    parts = zip(rows.split(AT_ONCE), points.split(AT_ONCE), strict=True)
    return _joined([step(case.question.rows(row), uniforms) for row, uniforms in parts])


def _after(step: Step, case: Case, other: Company, rows: Tensor, points: Tensor) -> Answer:
    """Every call behind one of the company."""
    fresh = step.fresh()
    fresh(other.question, other.uniforms)
    return fresh(case.question.rows(rows), points)


def _beside(step: Step, case: Case, other: Company, first: bool, rows: Tensor, points: Tensor) -> Answer:
    """Every row in a batch of two with the company."""
    pairs = zip(rows.split(1), points.split(1), strict=True)
    return _joined([ask_beside(step, other, case.question.rows(row), point, first) for row, point in pairs])


def _joined(parts: list[Answer]) -> Answer:
    return Answer(*(torch.cat([getattr(part, name) for part in parts]) for name in ("node", "value", "kept")))


def _ends(step: Step, several: list[Case]) -> list[str]:
    """A note where a value of probability 0 comes out at uniforms of exactly 0, or as high as they get."""
    for case in several:
        rows = torch.arange(len(case.drafts.value))
        for uniform in (0.0, HIGH):
            points = torch.full((len(rows), case.shape.tree.nodes), uniform, dtype=torch.float64)
            if impossible(case, _together(step, case, rows, points)):
                return [f"where uniforms are {uniform:.9g}, a value of probability 0 comes out (once in 16 million draws of "
                        "float32 uniforms)"]  # fmt: skip
    return []
