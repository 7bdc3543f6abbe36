"""Islands that are not boxes: how far they move a law, from the probes that fall on them."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from mmspec.certify.cases import Case
from mmspec.certify.law import law_of_answers
from mmspec.certify.probes import CALL, ROUNDING, Effort
from mmspec.certify.regions import RegionMap
from mmspec.certify.step import Answer

ENOUGH = 400  # strays
LONGER = 10  # times the probes and the time that a step without islands gets
DEVIATIONS = 6.0  # of a shift from 0, in standard deviations, that chance does not make


@dataclass(frozen=True, slots=True)
class Strays:
    """Probes whose answer is not that of their region.

    kinds: int64 [K, 3], the row, the region's code and the answer's code.   counts: int64 [K].
    probes: How many probes every row had.
    """

    kinds: Tensor
    counts: Tensor
    probes: int


def strays(found: RegionMap, effort: Effort) -> Strays:
    """Probes every row until many strays are seen, without refining the map.

    Args:
        found: The map of all rows, whose search has ended.
        effort: How much a step without islands is probed; it is up to `LONGER` times as much here.
    """
    dice = torch.Generator().manual_seed(3)
    rows, end = torch.arange(found.rows), perf_counter() + LONGER * effort.seconds
    size, probes, parts, count = 1, 0, [], 0
    while count < ENOUGH and probes < LONGER * effort.probes and (perf_counter() < end or not parts):
        size = min(2 * size, max(CALL // len(rows), 1))
        points = torch.rand(len(rows), size, found.axes, generator=dice, dtype=torch.float64)
        place = found.locate(rows, points)
        codes = found.ask(rows.repeat_interleave(size), points.flatten(0, 1)).view_as(place.code)
        row, column = ((codes != place.code) & (place.margin > ROUNDING)).nonzero(as_tuple=True)
        parts.append(torch.stack((row, place.code[row, column], codes[row, column]), 1))
        probes, count = probes + size, count + len(row)
    kinds, counts = torch.cat(parts).unique(dim=0, return_counts=True)
    return Strays(kinds, counts, probes)


def shift(case: Case, seen: Strays) -> Tensor | None:
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
        old, new = (law_of_answers(case, row[None], one, Answer.of_codes(code[None], nodes, size)).law
                    for code in (region, answer))  # fmt: skip
        total, spread = total + count * (new - old), spread + count * (new - old) ** 2
    if not bool((total.abs() > DEVIATIONS * spread.sqrt()).any()):
        return None
    return total / seen.probes
