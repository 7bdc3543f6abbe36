"""Jacobi decoding in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.core.arguments import check_fields
from mmspec.imagegen.canvas import CanvasTarget
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.non_raster import NonRasterOrder
from mmspec.imagegen.rowwise.parallel import OpenRows
from mmspec.imagegen.rowwise.rule import RowParallel


@dataclass(frozen=True, slots=True)
class PJD(NonRasterOrder):
    """Speculative Jacobi decoding in every open row at once; a row opens when the one above has `context` values. Relaxed:
    a value is settled before all values ahead of it in raster order are. context >= the columns is speculative Jacobi
    decoding row by row, which is exact.

    "Parallel Jacobi Decoding" (no public code). A row drafts min(window, values the row above is ahead) values, from the
    laws of the previous round. Drafts see the settled values of the rows above and their own row, never drafts of another
    row. The rejected value is settled from the residual in the first open row only; elsewhere that draw is the next draft.
    What the paper leaves open: a row whose predecessor is missing starts behind a stand-in, as ZipAR's rows do; at most
    columns / context + 1 rows are open; keys and values of settled values are kept as they were computed (stale).
    Raises ValueError for a context or window below 1.
    """

    context: int = 8
    window: int = 8

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("context", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1 value, got {getattr(self, name)}; use 1 or more")

    @property
    def name(self) -> str:
        return f"pjd_{self.context}_{self.window}"

    def rule(self, model: ImageModel) -> RowParallel:
        """The rule this decoding is judged by."""
        return RowParallel()

    def open(self, target: CanvasTarget) -> OpenRows:
        return OpenRows(target, self.context, self.window)
