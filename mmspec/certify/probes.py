"""Independent probes of the whole cube of uniforms, which bound the islands that a map of regions can have missed.

Where the islands are not boxes, the probes that fall on them tell how far they move the law.
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

FEWEST = 100  # probes a row, however slow the step is
ROUNDING = 1e-6  # so near to an edge an answer may hang on the rounding of a sum
CALL = 1 << 15  # probes a call
PROBES, SECONDS = 10_000, 5.0  # of a row, of a case


@dataclass(frozen=True, slots=True)
class ProbeBudget:
    """How much a case is probed.

    Args:
        probes: Probes of every row.
        seconds: After this time the probing ends, as soon as every row has `FEWEST` probes.
    """

    probes: int = PROBES
    seconds: float = SECONDS


class IrregularIslands(UnresolvedRegions):
    """There are islands that are not made of boxes."""


class BatchDependent(ValueError):
    """A row has another answer in a large batch than by itself.

    rows, codes: int64 [M], the batch and its answers.
    """

    def __init__(self, rows: Tensor, codes: Tensor):
        super().__init__("uniforms: expected one answer to a row in any batch, got another in a large one")
        self.rows, self.codes = rows, codes


def visible_island(probes: int) -> float:
    """The volume of uniforms that independent probes hit with a chance of `POWER`.

    Args:
        probes: How many probes there are.

    Returns:
        The volume v with (1 - v)^probes = 1 - POWER; 1 without probes.
    """
    return 1 - (1 - POWER) ** (1 / probes) if probes else 1.0


def probe(found: RegionMap, effort: ProbeBudget) -> int:
    """Compares the answers at independent uniform points with those of their regions.

    A point whose answer is not that of its region lies on an island that the search has missed: the map is refined there,
    and the probes of that row are counted from 0 again. Points within `ROUNDING` of an edge are not counted.

    Args:
        found: The map of all rows, whose search has ended; refined in place.
        effort: How many probes.

    Returns:
        The number of probes of the row that has fewest, all of which agree with the map.

    Raises:
        Swayed: A row has another answer in a large batch.
        Ragged: The islands are not made of boxes; the map is without these.
        Uneven: The step draws random numbers of its own.
    """
    dice = torch.Generator().manual_seed(2)
    counts = torch.zeros(found.rows, dtype=torch.long)
    end, batch = perf_counter() + effort.seconds, 1
    while True:
        wanted = effort.probes if perf_counter() < end else min(effort.probes, FEWEST)
        rows = (counts < wanted).nonzero()[:, 0]
        if len(rows) == 0:
            return int(counts.min())
        batch = min(2 * batch, max(CALL // len(rows), 1), int(wanted - counts.min()))
        points = torch.rand(len(rows), batch, found.axes, generator=dice, dtype=torch.float64)
        place = found.locate(rows, points)
        owner, flat = rows.repeat_interleave(batch), points.flatten(0, 1)
        codes = found.ask(owner, flat)
        is_evidence = place.margin > ROUNDING
        counts[rows] += is_evidence.sum(1)
        is_island = ((codes.view_as(place.code) != place.code) & is_evidence).flatten()
        if bool(is_island.any()):
            _check_batch(found.ask, owner, flat, codes, is_island)
            try:
                found.refine(owner[is_island], flat[is_island], place.box.flatten()[is_island], codes[is_island])
            except UnresolvedRegions as error:
                raise IrregularIslands(str(error)) from error
            counts[owner[is_island]] = 0


def _check_batch(ask: Callable, rows: Tensor, points: Tensor, codes: Tensor, which: Tensor) -> None:
    """Raises Swayed or Uneven where some rows have another answer without the others of their batch."""
    if torch.equal(ask(rows[which], points[which]), codes[which]):
        return
    if torch.equal(ask(rows, points), codes):
        raise BatchDependent(rows, codes)
    raise UnresolvedRegions("uniforms: expected one answer to one question, got another when it was asked again")


ENOUGH = 400  # strays
STRAY_EFFORT = 10  # times the probes and the time that a step without islands gets
DEVIATIONS = 6.0  # of a shift from 0, in standard deviations, that chance does not make


@dataclass(frozen=True, slots=True)
class StrayProbes:
    """Probes whose answer is not that of their region.

    kinds: int64 [K, 3], the row, the region's code and the answer's code.   counts: int64 [K].
    probes: How many probes every row had.
    """

    kinds: Tensor
    counts: Tensor
    probes: int


def collect_strays(found: RegionMap, effort: ProbeBudget) -> StrayProbes:
    """Probes every row until many strays are seen, without refining the map.

    Args:
        found: The map of all rows, whose search has ended.
        effort: How much a step without islands is probed; it is up to `STRAY_EFFORT` times as much here.
    """
    dice = torch.Generator().manual_seed(3)
    rows, end = torch.arange(found.rows), perf_counter() + STRAY_EFFORT * effort.seconds
    size, probes, parts, count = 1, 0, [], 0
    while count < ENOUGH and probes < STRAY_EFFORT * effort.probes and (perf_counter() < end or not parts):
        size = min(2 * size, max(CALL // len(rows), 1))
        points = torch.rand(len(rows), size, found.axes, generator=dice, dtype=torch.float64)
        place = found.locate(rows, points)
        codes = found.ask(rows.repeat_interleave(size), points.flatten(0, 1)).view_as(place.code)
        row, column = ((codes != place.code) & (place.margin > ROUNDING)).nonzero(as_tuple=True)
        parts.append(torch.stack((row, place.code[row, column], codes[row, column]), 1))
        probes, count = probes + size, count + len(row)
    kinds, counts = torch.cat(parts).unique(dim=0, return_counts=True)
    return StrayProbes(kinds, counts, probes)


def law_shift(case: CertifyCase, seen: StrayProbes) -> Tensor | None:
    """The difference that strays make to the joint law of a case.

    A step whose strays only exchange answers keeps its law: then the shift of every run of values is 0 on average, and its
    standard deviation follows from the strays themselves.

    Returns:
        float64 [cases, V^(D + 1)], to be added to the law of the map; None if it may be 0.
    """
    nodes, size = case.shape.tree.nodes, case.size
    total = spread = torch.zeros_like(case.target.expand(int(case.which.max()) + 1, -1))
    can_be_drafted = case.drafts.chance[seen.kinds[:, 0]] > 0
    for (row, region, answer), count in zip(
        seen.kinds[can_be_drafted], seen.counts[can_be_drafted].tolist(), strict=True
    ):
        one = torch.ones(1, dtype=torch.float64)
        old, new = (law_of_answers(case, row[None], one, StepAnswer.of_codes(code[None], nodes, size)).law
                    for code in (region, answer))  # fmt: skip
        total, spread = total + count * (new - old), spread + count * (new - old) ** 2
    if not bool((total.abs() > DEVIATIONS * spread.sqrt()).any()):
        return None
    return total / seen.probes
