"""The two examinations of a step: over all regions of its uniforms, or over samples of its own draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite

import torch
from torch import Tensor

from mmspec.certify.cases import CertifyCase
from mmspec.certify.certificate import TOLERANCE, CaseResult
from mmspec.certify.emitted_law import EmittedLaw, distance, emits_impossible, law_of_answers
from mmspec.certify.independence import HIGH, Independence, NeighbourRound, ask_beside, neighbour_rounds
from mmspec.certify.probes import (
    BatchDependent,
    IrregularIslands,
    ProbeBudget,
    collect_strays,
    law_shift,
    probe,
    visible_island,
)
from mmspec.certify.regions import RegionMap, UnresolvedRegions
from mmspec.certify.samples import SampledLaw, sample
from mmspec.certify.step import AcceptStep, StepAnswer

CaseCallback = Callable[[CaseResult], None]
BATCH = "a row changes with its batch"
STATE = "keeps rejected drafts in its state"
MEMORY = "remembers earlier calls"


@dataclass(slots=True)
class Outcome:
    """The results of an examination."""

    on_case: CaseCallback
    blame: str | None = None  # the dependence that makes the step fail
    results: list[CaseResult] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)  # a case: the emitted distribution, float64 [cases, V^(D + 1)]
    notes: list[str] = field(default_factory=list)
    drawn: list[SampledLaw] = field(default_factory=list)  # a case: the samples, for a sampled step

    @property
    def passed(self) -> bool:
        return self.blame is None and all(result.passed for result in self.results)

    @property
    def worst(self) -> float:
        return max(result.distance for result in self.results)

    def keep(self, case: CertifyCase, law: Tensor, **figures: object) -> None:
        """Add a case; `figures` are the fields of its `CaseResult` that do not follow from it."""
        shape = case.shape
        self.laws.append(law)
        self.results.append(
            CaseResult(case.kind, shape.parents, shape.drawn, case.size, len(case.drafts.value), **figures)
        )
        self.on_case(self.results[-1])


AT_ONCE = 1 << 15  # rows per call
Ask = Callable[[Tensor, Tensor], StepAnswer]


def run_by_regions(
    step: AcceptStep, several: list[CertifyCase], dependences: Independence, effort: ProbeBudget, on_case: CaseCallback
) -> Outcome:
    """Examine a step that takes uniforms. With dependences it is examined on the first case alone, under the conditions
    that change its answers. `effort` is the budget of probes a case; a step that has failed is not probed."""
    out, first = Outcome(on_case), several[0]
    if not dependences.memoryless:
        out.blame = STATE if dependences.grudge else MEMORY
        for other in neighbour_rounds(first.shape, first.size):
            _integrate(out, first, partial(_ask_after, step, first, other))
    elif dependences.moved_by:
        out.blame = BATCH
        for other, front in dependences.moved_by:
            _integrate(out, first, partial(_ask_beside, step, first, other, front))
    else:
        _cases(out, step, several, effort)
        if out.passed:
            out.notes += _extreme_uniforms(step, several)
    return out


def _cases(out: Outcome, step: AcceptStep, several: list[CertifyCase], effort: ProbeBudget) -> None:
    """Stop where a row changes in a large batch, or where a step that has failed already has no regions."""
    stale = []
    for case in several:
        try:
            stale.append(_integrate(out, case, partial(_ask_all, step, case), effort))
        except BatchDependent as batch:
            out.blame = BATCH
            share = 1.0 / torch.bincount(batch.rows)[batch.rows].double()
            _record_case(out, case, _law(case, batch.rows, share, batch.codes), asked=len(batch.rows), regions=None)
            return
        except UnresolvedRegions:
            if out.passed:
                raise
            break
    out.blame = STATE if max(stale) else None


def _integrate(out: Outcome, case: CertifyCase, ask: Ask, effort: ProbeBudget | None = None) -> float:
    """Examine a case, with probes if it passes otherwise; `effort` None is no probes. Return the share of rounds whose
    state keeps other tokens than were accepted."""
    nodes, size = case.shape.tree.nodes, case.size

    def codes(rows: Tensor, points: Tensor) -> Tensor:
        # the largest float32 below 1 is the highest uniform for a step in float32
        return ask(rows, points.clamp_max(HIGH)).codes(nodes, size)

    cut, probes = RegionMap(codes, len(case.drafts.value), nodes), 0
    cut.search([*range(cut.rows)])
    regions = cut.regions()
    law = _law(case, regions.row, regions.volume, regions.code)
    if effort is not None and out.passed and distance(case, law.law) <= TOLERANCE:
        try:
            probes = probe(cut, effort)
        except IrregularIslands:
            difference = law_shift(case, collect_strays(cut, effort))
            if difference is None:
                raise
            law = replace(law, law=law.law + difference)
            out.notes.append(
                f"{case.kind}: the answers deviate on islands that are not boxes; the distance is an estimate"
            )
        else:
            regions = cut.regions()
            law = _law(case, regions.row, regions.volume, regions.code)
    _record_case(out, case, law, asked=cut.queries, regions=len(regions.row), probes=probes)
    return law.stale


def _law(case: CertifyCase, row: Tensor, weight: Tensor, codes: Tensor) -> EmittedLaw:
    return law_of_answers(case, row, weight, StepAnswer.of_codes(codes, case.shape.tree.nodes, case.size))


def _record_case(
    out: Outcome, case: CertifyCase, law: EmittedLaw, asked: int, regions: int | None, probes: int = 0
) -> None:
    off = distance(case, law.law)
    out.keep(
        case,
        law.law,
        asked=asked,
        regions=regions,
        accepted=law.accepted,
        distance=off,
        passed=off <= TOLERANCE,
        probes=probes,
        island=visible_island(probes) if probes else None,
    )


def _ask_all(step: AcceptStep, case: CertifyCase, rows: Tensor, points: Tensor) -> StepAnswer:
    parts = zip(rows.split(AT_ONCE), points.split(AT_ONCE), strict=True)
    return _concat_answers([step(case.question.rows(row), uniforms) for row, uniforms in parts])


def _ask_after(step: AcceptStep, case: CertifyCase, other: NeighbourRound, rows: Tensor, points: Tensor) -> StepAnswer:
    fresh = step.fresh()
    fresh(other.question, other.uniforms)
    return fresh(case.question.rows(rows), points)


def _ask_beside(
    step: AcceptStep, case: CertifyCase, other: NeighbourRound, first: bool, rows: Tensor, points: Tensor
) -> StepAnswer:
    pairs = zip(rows.split(1), points.split(1), strict=True)
    return _concat_answers([ask_beside(step, other, case.question.rows(row), point, first) for row, point in pairs])


def _concat_answers(parts: list[StepAnswer]) -> StepAnswer:
    return StepAnswer(*(torch.cat([getattr(part, name) for part in parts]) for name in ("node", "value", "kept")))


def _extreme_uniforms(step: AcceptStep, several: list[CertifyCase]) -> list[str]:
    """Return a note if a value of probability 0 is emitted at uniforms of exactly 0, or at the highest uniforms."""
    for case in several:
        rows = torch.arange(len(case.drafts.value))
        for uniform in (0.0, HIGH):
            points = torch.full((len(rows), case.shape.tree.nodes), uniform, dtype=torch.float64)
            if emits_impossible(case, _ask_all(step, case, rows, points)):
                return [
                    f"at uniforms of {uniform:.9g} it emits a value of probability 0 (once in 16 million draws of "
                    "float32 uniforms)"
                ]
    return []


ROWS = 512  # rows per call
ALONE = 2000  # rows in calls of a single row


def run_by_samples(step: AcceptStep, several: list[CertifyCase], count: int, on_case: CaseCallback) -> Outcome:
    """Examine a step by `count` samples of every case, then of the first case beside and after other rounds if it passed."""
    out = Outcome(on_case)
    out.drawn = [_sample_case(out, step, case, count, seed) for seed, case in enumerate(several)]
    if any(law.stale for law in out.drawn):
        out.blame = STATE
    if not out.passed:
        return out
    first = several[0]
    for seed, other in enumerate(neighbour_rounds(first.shape, first.size), start=100):
        behind = STATE if other.name == "rejected" else MEMORY
        for blame, company in ((behind, {"before": other}), (BATCH, {"company": other})):
            if not _sample_case(out, step, first, count, seed, **company).test.passed:
                out.blame = blame
                return out
    return out


def passes_alone(step: AcceptStep, several: list[CertifyCase], drawn: list[SampledLaw]) -> bool:
    """Return whether rows in calls of their own keep the target's distribution, as a test on few samples can tell."""
    worst = max(range(len(several)), key=lambda i: drawn[i].test.statistic / drawn[i].test.limit)
    seen, count = drawn[worst].test, int(drawn[worst].counts.sum())
    alone = sample(step.fresh(), several[worst], min(count, ALONE), 1, 200)
    shows = (seen.statistic - seen.freedom) / count > 4 * alone.visible**2  # see `visible_distance`
    return shows and alone.test.passed


def _sample_case(
    out: Outcome, step: AcceptStep, case: CertifyCase, count: int, seed: int, **how: NeighbourRound
) -> SampledLaw:
    result = sample(step.fresh(), case, count, ROWS, seed, **how)
    test = result.test
    statistic = test.statistic if isfinite(test.statistic) else None
    out.keep(
        case,
        result.law,
        asked=count,
        regions=None,
        accepted=result.accepted,
        distance=distance(case, result.law),
        passed=test.passed,
        statistic=statistic,
        freedom=test.freedom,
        limit=test.limit,
        visible=result.visible,
    )
    return result
