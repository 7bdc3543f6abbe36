"""Independent probes of the whole cube of uniforms, which bound the islands that a map of regions may have missed.

Where islands are not boxes, the probes that fall on them estimate the change of the distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from mmspec.certify.cases import CertifyCase
from mmspec.certify.certificate import POWER
from mmspec.certify.emitted_law import law_of_answers
from mmspec.certify.regions import RegionMap, UnresolvedRegions
from mmspec.certify.step import StepAnswer

FEWEST = 100  # the least probes per row, however slow the step is
ROUNDING = 1e-6  # the distance from an edge within which an answer may depend on rounding
CALL = 1 << 15  # probes per call
PROBES, SECONDS = 10_000, 5.0  # per row, per case


@dataclass(frozen=True, slots=True)
class ProbeBudget:
    """The budget of a case: probes a row, and the seconds after which probing ends once every row has `FEWEST` probes."""

    probes: int = PROBES
    seconds: float = SECONDS


class IrregularIslands(UnresolvedRegions):
    """There are islands that are not made of boxes."""


class BatchDependent(ValueError):
    """A row has another answer in a large batch, rows int64 [M] with answers codes int64 [M], than alone."""

    def __init__(self, rows: Tensor, codes: Tensor):
        super().__init__("uniforms: expected the same answer to a row in any batch, got another in a large batch")
        self.rows, self.codes = rows, codes


def visible_island(probes: int) -> float:
    """Return the volume v that probes hit with a chance of `POWER`: (1 - v)^probes = 1 - POWER; 1 without probes."""
    return 1 - (1 - POWER) ** (1 / probes) if probes else 1.0


def probe(regions: RegionMap, effort: ProbeBudget) -> int:
    """Compare the answers at independent uniform points with those of their regions. A point with another answer is on
    an island that the search missed: the map is refined in place, and the probes of that row start again from 0. Points
    within `ROUNDING` of an edge do not count. Return the least number of agreeing probes of a row."""
    dice = torch.Generator().manual_seed(2)
    counts = torch.zeros(regions.rows, dtype=torch.long)
    end, batch = perf_counter() + effort.seconds, 1
    while True:
        count = effort.probes if perf_counter() < end else min(effort.probes, FEWEST)
        rows = (counts < count).nonzero()[:, 0]
        if len(rows) == 0:
            return int(counts.min())
        batch = min(2 * batch, max(CALL // len(rows), 1), int(count - counts.min()))
        points = torch.rand(len(rows), batch, regions.axes, generator=dice, dtype=torch.float64)
        place = regions.locate(rows, points)
        owner, flat = rows.repeat_interleave(batch), points.flatten(0, 1)
        codes = regions.ask(owner, flat)
        is_evidence = place.margin > ROUNDING
        counts[rows] += is_evidence.sum(1)
        is_island = ((codes.view_as(place.code) != place.code) & is_evidence).flatten()
        if bool(is_island.any()):
            _check_batch(regions.ask, owner, flat, codes, is_island)
            try:
                regions.refine(owner[is_island], flat[is_island], place.box.flatten()[is_island], codes[is_island])
            except UnresolvedRegions as error:
                raise IrregularIslands(str(error)) from error
            counts[owner[is_island]] = 0


def _check_batch(ask: Callable, rows: Tensor, points: Tensor, codes: Tensor, which: Tensor) -> None:
    """Raise if rows have other answers without the rest of their batch, or change from call to call."""
    if torch.equal(ask(rows[which], points[which]), codes[which]):
        return
    if torch.equal(ask(rows, points), codes):
        raise BatchDependent(rows, codes)
    raise UnresolvedRegions("uniforms: expected the same answer to the same input, got another in a second call")


ENOUGH = 400  # strays after which probing ends
STRAY_EFFORT = 10  # the factor of probes and time for steps with islands
DEVIATIONS = 6.0  # the significant shift, in standard deviations


@dataclass(frozen=True, slots=True)
class StrayProbes:
    """Probes with another answer than their region."""

    kinds: Tensor  # int64 [K, 3], the row, the region's code and the answer's code
    counts: Tensor  # int64 [K]
    probes: int  # probes of every row


def collect_strays(regions: RegionMap, effort: ProbeBudget) -> StrayProbes:
    """Probe every row until many strays are seen, up to `STRAY_EFFORT` times the effort, without refining the map."""
    dice = torch.Generator().manual_seed(3)
    rows, end = torch.arange(regions.rows), perf_counter() + STRAY_EFFORT * effort.seconds
    size, probes, parts, count = 1, 0, [], 0
    while count < ENOUGH and probes < STRAY_EFFORT * effort.probes and (perf_counter() < end or not parts):
        size = min(2 * size, max(CALL // len(rows), 1))
        points = torch.rand(len(rows), size, regions.axes, generator=dice, dtype=torch.float64)
        place = regions.locate(rows, points)
        codes = regions.ask(rows.repeat_interleave(size), points.flatten(0, 1)).view_as(place.code)
        row, column = ((codes != place.code) & (place.margin > ROUNDING)).nonzero(as_tuple=True)
        parts.append(torch.stack((row, place.code[row, column], codes[row, column]), 1))
        probes, count = probes + size, count + len(row)
    kinds, counts = torch.cat(parts).unique(dim=0, return_counts=True)
    return StrayProbes(kinds, counts, probes)


def law_shift(case: CertifyCase, seen: StrayProbes) -> Tensor | None:
    """Return the change that strays make to the joint distribution of a case, to be added to that of the map: float64
    [cases, V^(D + 1)]; None if it may be 0. A step whose strays only exchange answers keeps its distribution: the shift
    of every run of values is 0 on average, with a standard deviation that follows from the strays."""
    nodes, size = case.shape.tree.nodes, case.size
    total = spread = torch.zeros_like(case.target.expand(int(case.which.max()) + 1, -1))
    can_be_drafted = case.drafts.chance[seen.kinds[:, 0]] > 0
    for (row, region, answer), count in zip(
        seen.kinds[can_be_drafted], seen.counts[can_be_drafted].tolist(), strict=True
    ):
        weight = torch.ones(1, dtype=torch.float64)
        old, new = (
            law_of_answers(case, row[None], weight, StepAnswer.of_codes(code[None], nodes, size)).law
            for code in (region, answer)
        )
        total, spread = total + count * (new - old), spread + count * (new - old) ** 2
    if not bool((total.abs() > DEVIATIONS * spread.sqrt()).any()):
        return None
    return total / seen.probes
