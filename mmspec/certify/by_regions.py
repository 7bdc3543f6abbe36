"""The examination of a step that takes its uniforms: all drafts, all uniforms, in the worst of companies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from mmspec.certify.cases import Case
from mmspec.certify.certificate import TOLERANCE
from mmspec.certify.law import Found, distance, impossible, law_of_answers
from mmspec.certify.manners import HIGH, Company, Manners, ask_beside, companies
from mmspec.certify.outcome import BATCH, MEMORY, STATE, Outcome, Told
from mmspec.certify.probes import Effort, Ragged, Swayed, probe, visible_island
from mmspec.certify.regions import RegionMap, Uneven
from mmspec.certify.step import Answer, Step
from mmspec.certify.strays import shift, strays

AT_ONCE = 1 << 15  # rows a call
Ask = Callable[[Tensor, Tensor], Answer]


def by_regions(step: Step, several: list[Case], manners: Manners, effort: Effort, told: Told) -> Outcome:
    """Examines a step by the regions of its uniforms.

    A step that looks at its company or remembers is asked about the first case alone, in what changes its answers.

    Args:
        step: The step, which takes uniforms.
        several: The cases.
        manners: What the step's answers depend on.
        effort: How much a case is probed for islands. A step that has failed is not probed: it has no bound.
        told: Hears of every case.

    Raises:
        Uneven: The regions do not come to an end.
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
        _cases(out, step, several, effort)
        if out.passed:
            out.notes += _ends(step, several)
    return out


def _cases(out: Outcome, step: Step, several: list[Case], effort: Effort) -> None:
    """All cases in turn.

    Ends early where a row is seen to change in a large batch, and where a step that has failed already shows no regions.
    """
    stale = []
    for case in several:
        try:
            stale.append(_integrate(out, case, partial(_together, step, case), effort))
        except Swayed as batch:
            out.blame = BATCH
            share = 1.0 / torch.bincount(batch.rows)[batch.rows].double()
            _keep(out, case, _law(case, batch.rows, share, batch.codes), asked=len(batch.rows), regions=None)
            return
        except Uneven:
            if out.passed:
                raise
            break
    out.blame = STATE if max(stale) else None


def _integrate(out: Outcome, case: Case, ask: Ask, effort: Effort | None = None) -> float:
    """Examines a case.

    Args:
        out: Takes the case in.
        case: The case.
        ask: The step.
        effort: How much the case is probed for islands if nothing else is wrong; None for not at all.

    Returns:
        The share of rounds whose state keeps other tokens than were accepted.
    """
    nodes, size = case.shape.tree.nodes, case.size

    def codes(rows: Tensor, points: Tensor) -> Tensor:
        # beyond the largest float32 below 1 there is no uniform for a step that computes in it
        return ask(rows, points.clamp_max(HIGH)).codes(nodes, size)

    cut, probes = RegionMap(codes, len(case.drafts.value), nodes), 0
    cut.search([*range(cut.rows)])
    regions = cut.regions()
    law = _law(case, regions.row, regions.volume, regions.code)
    if effort is not None and out.passed and distance(case, law.law) <= TOLERANCE:
        try:
            probes = probe(cut, effort)
        except Ragged:
            difference = shift(case, strays(cut, effort))
            if difference is None:
                raise
            law = replace(law, law=law.law + difference)
            out.notes.append(
                f"{case.kind}: the answers are wrong on islands that are not boxes; the distance is an estimate"
            )
        else:
            regions = cut.regions()
            law = _law(case, regions.row, regions.volume, regions.code)
    _keep(out, case, law, asked=cut.queries, regions=len(regions.row), probes=probes)
    return law.stale


def _law(case: Case, row: Tensor, weight: Tensor, codes: Tensor) -> Found:
    return law_of_answers(case, row, weight, Answer.of_codes(codes, case.shape.tree.nodes, case.size))


def _keep(out: Outcome, case: Case, law: Found, asked: int, regions: int | None, probes: int = 0) -> None:
    off = distance(case, law.law)
    out.keep(case, law.law, asked=asked, regions=regions, accepted=law.accepted, distance=off, passed=off <= TOLERANCE,
             probes=probes, island=visible_island(probes) if probes else None)  # fmt: skip


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
