"""Row-parallel decoding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.arguments import check_fields
from mmspec.core.draft import Draft, Law
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.tree import chains
from mmspec.core.verdict import Verdict
from mmspec.imagegen.canvas import CanvasTarget
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.non_raster import NonRasterOrder
from mmspec.imagegen.rowwise.parallel import OpenRows
from mmspec.imagegen.rowwise.rule import RowParallel
from mmspec.imagegen.rowwise.schedule import schedule


@dataclass(frozen=True, slots=True)
class ZipAR(NonRasterOrder):
    """Every open row gains a value a round; a row opens when the one above has `window` values. Relaxed: a value is drawn
    before all values ahead of it in raster order are known. window >= the columns is plain decoding.

    "ZipAR: Parallel Autoregressive Image Generation through Spatial Locality". About n + window (n - 1) passes for n x n.
    Its public code feeds the last value of the row before as a stand-in for a row's missing last value, and the stand-in's
    keys and values stay visible until the true value overwrites them; here nobody but the stand-in itself sees them. What a
    row computed before the row above was complete is kept as it is (stale), as in the public code.
    adaptive: from `window` values on, a row opens as soon as a candidate for its first value stands against the law that
    one more value of the row above gives: min(1, p_k / p_(k-1)), else a draw from [p_k - p_(k-1)]+ is the next candidate.
    The candidate is fed while it is judged, so once it stands its row goes on in the same round.
    Raises ValueError for a window below 1.
    """

    window: int = 8
    adaptive: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.window < 1:
            raise ValueError(f"window: expected at least 1 value, got {self.window}; use 1 or more")

    @property
    def name(self) -> str:
        return f"zipar{'_adaptive' if self.adaptive else ''}_{self.window}"

    def rule(self, model: ImageModel) -> RowParallel:
        """The rule this decoding is judged by."""
        return RowParallel()

    def open(self, target: CanvasTarget) -> _Scheduled | OpenRows:
        if self.adaptive:
            return OpenRows(target, context=self.window, window=0)
        return _Scheduled(target.geometry, self.window)


class _Scheduled:
    """One request: all of it is known beforehand."""

    passes = 0

    def __init__(self, geometry: Geometry, window: int):
        self.geometry, self.window, self.round = geometry, window, 0

    def propose(self, target: CanvasTarget, keys: Keys) -> Draft:
        place, source, fed, wanted = _tensors(self.geometry, self.window, str(target.device))[self.round]
        self.round += 1
        shape = (target.batch, len(place))
        value = target.values.index_select(1, source)
        return Draft(value, chains((0,) * len(place), target.device), Law("none"), fed.expand(shape), place.expand(shape),
                     wanted.expand(shape))  # fmt: skip

    def observe(self, target: CanvasTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        return None


@lru_cache(maxsize=16)
def _tensors(geometry: Geometry, window: int, device: str) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Per round the places, the sources, which nodes are no stand-ins, and which ask for a value; [N] each."""
    return [
        tuple(
            torch.tensor(x, device=device)
            for x in zip(*((f.place, f.source, f.place == f.source, f.open) for f in feeds), strict=True)
        )  # fmt: skip
        for feeds in schedule(geometry, window)
    ]
