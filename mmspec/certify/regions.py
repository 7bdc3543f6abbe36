"""The exact distribution of a step that takes its uniforms as an argument: boxes of uniforms with a constant answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Ask = Callable[[Tensor, Tensor], Tensor]

HALVINGS = 46  # a boundary is known to 2^-46
NEAR = 1e-9  # the distance of test points from the corners of a region
ROUNDS, AT_ONCE, PLAIN = 60, 8, 16
MOST_EDGES, MOST_BOXES = 96, 20_000  # per uniform, per row


class UnresolvedRegions(ValueError):
    """The answers do not form boxes: uniforms are combined, or the step is not a function of them."""


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of all rows."""

    row: Tensor  # int64 [C], the row of each region
    volume: Tensor  # float64 [C]
    code: Tensor  # int64 [C], the answer there


@dataclass(frozen=True, slots=True)
class RegionLocation:
    """The location of points, int64 or float64 [M, K] each."""

    box: Tensor  # the number of the box among those of its row
    code: Tensor  # the answer there
    margin: Tensor  # distance to the nearest edge of the box, along any uniform


class RegionMap:
    """The cube of A uniforms of every row, cut into boxes with a constant answer. `ask` maps rows int64 [M] and points
    float64 [M, A] to codes int64 [M].

    A step that compares each uniform with a value independent of the other uniforms is constant on boxes, as accept
    tests and inverse distribution functions are. The boxes are found without its formula. A search can miss an island
    inside a box with the same answer all around it, even if the distribution equals the target's: the map of a correct
    step with a small defect is that of the correct step. So `probes` looks for islands, and bounds them."""

    def __init__(self, ask: Ask, rows: int, axes: int):
        self.rows, self.axes, self.queries = rows, axes, 0
        self._step = ask
        self._edges: list[list[list[float]]] = [[[] for _ in range(axes)] for _ in range(rows)]
        self._regions: list[tuple[Tensor, Tensor, Tensor] | None] = [None] * rows
        self._dice = torch.Generator().manual_seed(0)

    def ask(self, rows: Tensor, points: Tensor) -> Tensor:
        """Return codes int64 [M] of rows int64 [M] at points float64 [M, A]; `queries` counts them."""
        self.queries += len(rows)
        return self._step(rows, points)

    def search(self, rows: list[int]) -> None:
        """Cut the cubes of these rows until a round of tests finds nothing new. Every box is tested in its middle, near
        two opposite corners and at a random point, and the cube at further random points. Where an answer differs from
        that of the middle, a walk from the middle to that point changes a uniform at a time. The step on which the
        answer changes is halved until the boundary is known up to rounding."""
        for _ in range(ROUNDS):
            boxes = [_boxes(self._edges[row]) for row in rows]
            if max(len(low) for low, _ in boxes) > MOST_BOXES:
                break
            middles = [(low + high) / 2 for low, high in boxes]
            codes = self.ask(_owner(rows, middles), torch.cat(middles))
            points, box = _probes(boxes, self._edges, rows, self._dice)
            seen_there = self.ask(_owner(rows, points), torch.cat(points))
            still, walks = [], []
            split = codes.split([len(m) for m in middles])
            for row, (low, high), middle, mine, point, inside, seen in zip(
                rows, boxes, middles, split, points, box, seen_there.split([len(p) for p in points]), strict=True
            ):
                wrong = (seen != mine[inside]).nonzero()[:, 0]
                if len(wrong) == 0:
                    self._regions[row] = (torch.full((len(mine),), row), (high - low).prod(-1), mine)
                    continue
                still.append(row)
                walks += [(row, middle[inside[i]], point[i]) for i in _spread(wrong, inside, seen)]
            if not still:
                return
            self._cut(walks)
            rows = still
        raise UnresolvedRegions(
            "uniforms: expected answers that are constant on boxes, got ever more boxes; they are mixed with another"
        )

    def locate(self, rows: Tensor, points: Tensor) -> RegionLocation:
        """Return the boxes that contain points float64 [M, K, A] of rows int64 [M] with a finished search."""
        edges = [self._edges[row] for row in rows.tolist()]
        most = max(len(axis) for row in edges for axis in row)
        # [M, A, most + 2]
        ends = torch.tensor(
            [[[0.0, *axis, *[1.0] * (most + 1 - len(axis))] for axis in row] for row in edges], dtype=torch.float64
        )
        along = points.transpose(1, 2).contiguous()
        place = torch.searchsorted(ends[..., 1:-1].contiguous(), along, right=True)
        margin = torch.minimum(along - ends.gather(2, place), ends.gather(2, place + 1) - along).amin(1)
        box = torch.zeros_like(place[:, 0])
        for axis in range(self.axes):
            count = torch.tensor([len(row[axis]) + 1 for row in edges])
            box = box * count[:, None] + place[:, axis]
        codes = [self._regions[row][2] for row in rows.tolist()]
        first = torch.tensor([0, *map(len, codes[:-1])]).cumsum(0)
        return RegionLocation(box, torch.cat(codes)[first[:, None] + box], margin)

    def refine(self, rows: Tensor, points: Tensor, boxes: Tensor, codes: Tensor) -> None:
        """Cut the cubes of rows int64 [M] toward points float64 [M, A] whose answers, codes int64 [M], differ from
        those of their boxes int64 [M], and search these rows again. A failed search leaves the map unchanged."""
        walks, changed = [], rows.unique().tolist()
        before = [([axis.copy() for axis in self._edges[row]], self._regions[row]) for row in changed]
        for row in changed:
            low, high = _boxes(self._edges[row])
            mine = (rows == row).nonzero()[:, 0]
            for i in mine[_spread(torch.arange(len(mine)), boxes[mine], codes[mine])].tolist():
                walks.append((row, (low[boxes[i]] + high[boxes[i]]) / 2, points[i]))
        try:
            self._cut(walks)
            self.search(changed)
        except UnresolvedRegions:
            for row, (edges, regions) in zip(changed, before, strict=True):
                self._edges[row], self._regions[row] = edges, regions
            raise

    def regions(self) -> Regions:
        return Regions(*(torch.cat(part) for part in zip(*self._regions, strict=True)))

    def _cut(self, walks: list[tuple[int, Tensor, Tensor]]) -> None:
        row = torch.tensor([walk[0] for walk in walks])
        start, goal = (torch.stack([walk[i] for walk in walks]) for i in (1, 2))
        stops = torch.stack(
            [torch.cat((goal[:, :axis], start[:, axis:]), 1) for axis in range(self.axes + 1)], 1
        )  # [W, A + 1, A]
        codes = self.ask(row.repeat_interleave(self.axes + 1), stops.flatten(0, 1)).view(len(walks), -1)
        walk, axis = (codes[:, 1:] != codes[:, :-1]).nonzero(as_tuple=True)
        if len(walk) == 0:
            raise UnresolvedRegions(
                "uniforms: expected the same answer to the same input, got another in a second call"
            )
        here, before = stops[walk, axis], codes[walk, axis]
        near, far = start[walk, axis], goal[walk, axis]
        for _ in range(HALVINGS):
            middle = (near + far) / 2
            here = here.scatter(1, axis[:, None], middle[:, None])
            same = self.ask(row[walk], here) == before
            near, far = torch.where(same, middle, near), torch.where(same, far, middle)
        places = torch.maximum(near, far).tolist()
        for owner, where, place in zip(row[walk].tolist(), axis.tolist(), places, strict=True):
            known = self._edges[owner][where]
            if all(abs(place - edge) > 1e-13 for edge in known):
                known.append(place)
                known.sort()
            if len(known) > MOST_EDGES:
                raise UnresolvedRegions(
                    "uniforms: expected answers that are constant on boxes, got more than "
                    f"{MOST_EDGES} along uniform {where}; it is mixed with another"
                )


def _boxes(edges: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Return lower and upper corners, float64 [C, A], of all boxes between the edges of a row."""
    ends = [torch.tensor([0.0, *axis, 1.0], dtype=torch.float64) for axis in edges]
    low = torch.cartesian_prod(*(end[:-1] for end in ends)).reshape(-1, len(ends))
    high = torch.cartesian_prod(*(end[1:] for end in ends)).reshape(-1, len(ends))
    return low, high


def _probes(
    boxes: list[tuple[Tensor, Tensor]], edges: list, rows: list[int], dice: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Return test points, float64 [M, A] per row, and the box of each, int64 [M]."""
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
    """Select some of the wrong points, from as many boxes and answers as possible."""
    first: dict[tuple[int, int], int] = {}
    for index in wrong.tolist():
        first.setdefault((int(inside[index]), int(seen[index])), index)
    chosen = list(first.values())
    return chosen[:: max(len(chosen) // AT_ONCE, 1)][:AT_ONCE]


def _owner(rows: list[int], points: list[Tensor]) -> Tensor:
    return torch.tensor(rows).repeat_interleave(torch.tensor([len(p) for p in points]))
