"""A memory of image codes: sampled trees from the target's earlier distributions at codes with the same neighbours."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mmspec.core.drafting.shapes import likeliest_tree
from mmspec.core.drafting.stored_laws import Ngram, NgramLaws, StoredLawTrees, likeliest
from mmspec.core.round.draft import Draft, Evidence, Verdict, learnable_nodes
from mmspec.core.round.keys import Keys
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.target import ImageTarget
from mmspec.io.validation import Size, check_fields
from mmspec.methods import method

# the rate at which a node's child of rank 0, 1, ... is accepted: only the ratios shape the tree
HIT_RATES = (0.3, 0.15, 0.1, 0.07, 0.05)
_NOTHING = -1  # in place of a neighbour outside the grid
_NEIGHBOURS = ((-1, -1), (-1, 0), (0, -1))  # above left, above, left: the nearest last, as shorter keys drop the first


class GridTable:
    """A table of guided distributions by neighbouring codes. Requests that use the same table share it.

    Requests with other guidance, temperature or truncation have other distributions, so the table holds a part for each
    combination. It belongs to one user and one model: its drafts reveal earlier images.

    Args:
        width: The codes that are stored for a key.
        most: The keys that a part holds; beyond them the oldest are forgotten.

    Raises:
        ValueError: A number is below 1.
    """

    def __init__(self, width: int = 64, most: int = 100_000):
        if min(width, most) < 1:
            raise ValueError(f"width, most: expected at least 1, got {width} and {most}")
        self.width, self.most = width, most
        self.size: int | None = None
        self.parts: dict[Hashable, NgramLaws] = {}

    def part(self, target: ImageTarget) -> NgramLaws:
        """Return the part for the settings of a request."""
        self.size = self.size or target.model.size
        if self.size != target.model.size:
            raise ValueError(
                f"table: expected a model of {self.size} values, got {target.model.size}; use one table per model"
            )
        keys = NgramLaws(len(_NEIGHBOURS), 1, self.width, self.most)
        return self.parts.setdefault((target.geometry, target.guidance, target.warp), keys)


@method(
    "memory",
    domain="image",
    kind="decoding",
    title="grid memory",
    exact=True,
    order=7,
    models=("codes",),
    about="a tree drawn from the target's earlier distributions at codes with the same neighbours",
    paper="Accelerated Test-Time Scaling with Model-Free Speculative Sampling",
)
@dataclass(frozen=True, slots=True)
class GridMemory:
    """Trees drawn from a table of the target's distributions by neighbouring codes, without a model. Exact.

    STAND ("Accelerated Test-Time Scaling with Model-Free Speculative Sampling") for images: a key is the code to the
    left, the code above and the code above left, then the first two, then the first alone; the longest known key counts.
    The stored distributions are those after guidance, temperature and truncation. Greedy requests take the likeliest
    codes. Several pictures for one prompt should share a table.

    Args:
        nodes: The drafted nodes of the tree.
        depth: The levels of the tree.
        width: The codes that are stored for a key. Image distributions are flat: ten codes hold little of them.
        drawn: How a sampled request gets its children: "without_replacement" draws them, "deterministic" takes the
            likeliest codes, as Token Recycling does, which rule "match" verifies.
        table: None gives every row of a request an empty table; all requests of this decoding share a GridTable.

    Raises:
        ValueError: A number is out of range, or the table has another width.
    """

    nodes: Size = 7
    depth: int = 4
    width: Size = 64
    drawn: Literal["without_replacement", "deterministic"] = "without_replacement"
    table: GridTable | None = None

    name = "memory"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.table is not None and self.table.width != self.width:
            raise ValueError(f"table: expected width {self.width}, got {self.table.width}; use its width")
        likeliest_tree(self.nodes + 1, self.depth, HIT_RATES[: self.width])

    def open(self, target: ImageTarget) -> GridMemoryState:
        return GridMemoryState(self, target)


class GridMemoryState:
    """The table of each row of a request; a shared table is the same object in every row."""

    passes, may_miss = 0, True  # skipped rounds only leave the table smaller

    def __init__(self, drafter: GridMemory, target: ImageTarget):
        width, table = drafter.width, drafter.table
        self.laws = [(GridTable(width) if table is None else table).part(target) for _ in range(target.batch)]
        self.sources = _sources(target.geometry)
        self.width = width
        template = likeliest_tree(drafter.nodes + 1, drafter.depth, HIT_RATES[:width])
        picks = target.greedy or drafter.drawn == "deterministic"
        self.trees = StoredLawTrees(template, width, picks, target.device)

    def propose(self, target: ImageTarget, keys: Keys) -> Draft:
        rows = [values[:count] for values, count in zip(target.values.tolist(), target.filled, strict=True)]
        return self.trees.draft(target, keys, lambda row, path: self.laws[row].find(self.key([*rows[row], *path])))

    def key(self, values: Sequence[int]) -> Ngram:
        """Return the neighbours of the value after these: above left, above, left."""
        return tuple(_NOTHING if source < 0 else values[source] for source in self.sources[len(values)])

    def observe(self, target: ImageTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Store the distribution at every scored node of rows that go on, at rejected nodes too."""
        nodes = learnable_nodes(draft, evidence, target.live).tolist()
        ids, mass = (x.tolist() for x in likeliest(evidence.scores, self.width))
        parents, drafted = draft.tree.parent.expand(draft.batch, -1).tolist(), draft.value.tolist()
        committed = target.values.tolist()
        for row, depth in enumerate(verdict.depth.tolist()):
            if not target.live[row]:
                continue
            paths = [committed[row][: target.filled[row] - depth - 1]]
            for parent, value in zip(parents[row][1:], drafted[row][1:], strict=True):
                paths.append([*paths[parent], value])
            for node, path in enumerate(paths):
                if nodes[row][node] and len(path) < target.total:
                    known = [pair for pair in zip(ids[row][node], mass[row][node], strict=True) if pair[1] > 0]
                    self.laws[row].store(self.key(path), *zip(*known, strict=True))


@lru_cache(maxsize=64)
def _sources(geometry: Geometry) -> tuple[tuple[int, ...], ...]:
    """Return per value the indices of its neighbours in the order of `_NEIGHBOURS`, -1 for none."""
    place = {cell: index for index, cell in enumerate(geometry.cells) if cell[-1] >= 0}
    return tuple(
        tuple(place.get((grid, frame, row + down, column + right), -1) for down, right in _NEIGHBOURS)
        for grid, frame, row, column in geometry.cells
    )
