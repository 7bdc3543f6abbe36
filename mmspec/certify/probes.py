"""Independent probes of the whole cube of uniforms, which bound the islands that a map of regions can have missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from mmspec.certify.certificate import POWER
from mmspec.certify.regions import RegionMap, Uneven

FEWEST = 100  # probes a row, however slow the step is
ROUNDING = 1e-6  # so near to an edge an answer may hang on the rounding of a sum
CALL = 1 << 15  # probes a call
PROBES, SECONDS = 10_000, 5.0  # of a row, of a case


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a case is probed.

    Args:
        probes: Probes of every row.
        seconds: After this time the probing ends, as soon as every row has `FEWEST` probes.
    """

    probes: int = PROBES
    seconds: float = SECONDS


class Ragged(Uneven):
    """There are islands that are not made of boxes."""


class Swayed(ValueError):
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


def probe(found: RegionMap, effort: Effort) -> int:
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
            _check_company(found.ask, owner, flat, codes, is_island)
            try:
                found.refine(owner[is_island], flat[is_island], place.box.flatten()[is_island], codes[is_island])
            except Uneven as error:
                raise Ragged(str(error)) from error
            counts[owner[is_island]] = 0


def _check_company(ask: Callable, rows: Tensor, points: Tensor, codes: Tensor, which: Tensor) -> None:
    """Raises Swayed or Uneven where some rows have another answer without the others of their batch."""
    if torch.equal(ask(rows[which], points[which]), codes[which]):
        return
    if torch.equal(ask(rows, points), codes):
        raise Swayed(rows, codes)
    raise Uneven("uniforms: expected one answer to one question, got another when it was asked again")
