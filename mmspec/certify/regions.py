"""The exact law of a step that is given its uniforms: regions of them on which its answer is one and the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Ask = Callable[[Tensor, Tensor], Tensor]  # rows int64 [M], points float64 [M, A] -> codes int64 [M]

HALVINGS = 46  # a boundary is known to 2^-46
NEAR = 1e-9  # how near to the corners of a region it is looked at
ROUNDS, AT_ONCE, PLAIN = 60, 8, 16
MOST_EDGES, MOST_BOXES = 96, 20_000  # of a uniform, of a row


class Uneven(ValueError):
    """Answers do not come in boxes: a uniform is mixed with another, or the step is not a function of its uniforms."""


@dataclass(frozen=True, slots=True)
class Regions:
    """row: int64 [C], whose region it is.   volume: float64 [C].   code: int64 [C], the answer there.   asked: all rows
    that were asked."""

    row: Tensor
    volume: Tensor
    code: Tensor
    asked: int


def regions(ask: Ask, rows: int, axes: int) -> Regions:
    """Cuts the cube of uniforms of every row into boxes of one answer.

    A step that compares each uniform with something that does not depend on the other uniforms, as accept tests and inverse
    distribution functions do, is constant on boxes. They are found without knowing the formula: every box is asked in its
    middle, near two opposite corners and at a random point, and the cube at random points besides; where an answer is not
    that of the middle, one walks from the middle to that point a uniform at a time and halves the step on which the answer
    changes until the boundary is known to rounding. It ends when a round finds nothing new. What could still be missed is
    an island inside a box, with the same answer all around it. Such a box would give its volume to the wrong answer, so a law
    found this way that equals the target's to rounding has none that matters.
    Raises Uneven where the boxes do not come to an end.
    """
    edges = [[[] for _ in range(axes)] for _ in range(rows)]
    dice = torch.Generator().manual_seed(0)
    done: list[tuple[Tensor, Tensor, Tensor]] = [None] * rows
    open_rows, asked = list(range(rows)), 0
    for _ in range(ROUNDS):
        boxes = [_boxes(edges[row]) for row in open_rows]
        if max(len(low) for low, _ in boxes) > MOST_BOXES:
            break
        middles = [(low + high) / 2 for low, high in boxes]
        owner = _owner(open_rows, middles)
        codes = ask(owner, torch.cat(middles))
        points, box = _probes(boxes, edges, open_rows, dice)
        found = ask(_owner(open_rows, points), torch.cat(points))
        asked += len(codes) + len(found)
        still, walks = [], []
        split = codes.split([len(m) for m in middles])
        for row, (low, high), middle, mine, point, inside, seen in zip(
            open_rows, boxes, middles, split, points, box, found.split([len(p) for p in points]), strict=True
        ):
            wrong = (seen != mine[inside]).nonzero()[:, 0]
            if len(wrong) == 0:
                done[row] = (torch.full((len(mine),), row), (high - low).prod(-1), mine)
                continue
            still.append(row)
            for one in _spread(wrong, inside, seen):
                walks.append((row, middle[inside[one]], point[one]))
        if not still:
            return Regions(*(torch.cat(part) for part in zip(*done, strict=True)), asked)
        asked += _cut(ask, walks, edges, axes)
        open_rows = still
    raise Uneven(
        "uniforms: expected answers that are the same on boxes, got ever more of them; they are mixed with another"
    )


def _boxes(edges: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Lower and upper corners float64 [C, A] of all boxes between the edges of one row."""
    ends = [torch.tensor([0.0, *axis, 1.0], dtype=torch.float64) for axis in edges]
    low = torch.cartesian_prod(*(end[:-1] for end in ends)).reshape(-1, len(ends))
    high = torch.cartesian_prod(*(end[1:] for end in ends)).reshape(-1, len(ends))
    return low, high


def _probes(
    boxes: list[tuple[Tensor, Tensor]], edges: list, rows: list[int], dice: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Points to look at, float64 [M, A] a row, and the box each lies in, int64 [M]."""
    points, inside = [], []
    for (low, high), row in zip(boxes, rows, strict=True):
        count, width = low.shape[0], high - low
        near = (width / 4).clamp_max(NEAR)
        somewhere = low + width * torch.rand(low.shape, generator=dice, dtype=torch.float64)
        free = torch.rand(PLAIN, low.shape[1], generator=dice, dtype=torch.float64)
        points.append(torch.cat((low + near, high - near, somewhere, free)))
        index = torch.zeros(PLAIN, dtype=torch.long)
        for axis, cuts in enumerate(edges[row]):
            place = torch.bucketize(free[:, axis].contiguous(), torch.tensor(cuts, dtype=torch.float64), right=True)
            index = index * (len(cuts) + 1) + place
        inside.append(torch.cat((torch.arange(count).repeat(3), index)))
    return points, inside


def _spread(wrong: Tensor, inside: Tensor, seen: Tensor) -> list[int]:
    """Some of the wrong points, of as many boxes and answers as there are."""
    first: dict[tuple[int, int], int] = {}
    for one in wrong.tolist():
        first.setdefault((int(inside[one]), int(seen[one])), one)
    chosen = list(first.values())
    return chosen[:: max(len(chosen) // AT_ONCE, 1)][:AT_ONCE]


def _cut(ask: Ask, walks: list[tuple[int, Tensor, Tensor]], edges: list, axes: int) -> int:
    """Adds the boundaries that lie on the walks to the edges; returns how many rows were asked."""
    row = torch.tensor([walk[0] for walk in walks])
    start, goal = (torch.stack([walk[i] for walk in walks]) for i in (1, 2))
    stops = torch.stack(
        [torch.cat((goal[:, :axis], start[:, axis:]), 1) for axis in range(axes + 1)], 1
    )  # [W, A + 1, A]
    codes = ask(row.repeat_interleave(axes + 1), stops.flatten(0, 1)).view(len(walks), -1)
    walk, axis = (codes[:, 1:] != codes[:, :-1]).nonzero(as_tuple=True)
    if len(walk) == 0:
        raise Uneven("uniforms: expected one answer to one question, got another when it was asked again")
    here, before = stops[walk, axis], codes[walk, axis]
    near, far = start[walk, axis], goal[walk, axis]
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        here = here.scatter(1, axis[:, None], middle[:, None])
        same = ask(row[walk], here) == before
        near, far = torch.where(same, middle, near), torch.where(same, far, middle)
    for owner, where, place in zip(row[walk].tolist(), axis.tolist(), torch.maximum(near, far).tolist(), strict=True):
        known = edges[owner][where]
        if all(abs(place - one) > 1e-13 for one in known):
            known.append(place)
            known.sort()
        if len(known) > MOST_EDGES:
            raise Uneven(f"uniforms: expected answers that are the same on boxes, got more than {MOST_EDGES} along uniform "
                         f"{where}; it is mixed with another")  # fmt: skip
    return codes.numel() + len(walk) * HALVINGS


def _owner(rows: list[int], points: list[Tensor]) -> Tensor:
    return torch.tensor(rows).repeat_interleave(torch.tensor([len(p) for p in points]))
