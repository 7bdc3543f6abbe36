"""Drafting a picture from a smaller one of it."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.core.arguments import check_fields
from mmspec.core.loop import Drafter
from mmspec.imagegen.canvas import CanvasTarget
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.multiscale.rule import LocalThreshold, pools
from mmspec.imagegen.multiscale.state import MuLoState
from mmspec.imagegen.multiscale.upsampler import Upsampler
from mmspec.imagegen.non_raster import NonRasterOrder
from mmspec.imagegen.pipeline import ImagePipeline


@dataclass(frozen=True, slots=True)
class MuLo(NonRasterOrder):
    """Multi-scale local speculative decoding: a low-resolution model draws rows, an upsampler turns them into candidates, one
    pass of the target judges them all, and what falls is drawn again, islands of it side by side. Relaxed.

    "Multi-Scale Local Speculative Decoding for Image Generation" (MuLo-SD; no public code). See `LocalThreshold` for the
    verdict. Every round after it feeds each island's next predecessor and draws one value behind it, in raster order within
    the island; what stands is seen meanwhile as it was computed beside the candidates that fell. Once the islands are full
    everything from the first failure on is fed again, in the pass that judges the next rows, so that those see keys and
    values of what really stands there; `stale` leaves that out.
    What the paper leaves open: the very first value is the target's own; an island's first column follows the fallen
    candidate where the end of the row before is not drawn yet; where islands are cut, the first failure is drawn already.

    drafter: a pipeline or model for the small picture, of the same codebook family, that takes the target's condition and is
        run with its guidance and temperature.   upsampler: see `Upsampler`.
    threshold: pooled probability a candidate needs; 0 keeps all, above 1 is plain decoding.   k: codes pooled, the candidate
        among them.   radius: of the square that falls around a failure; None for all that follows.
    rows: low-resolution rows drawn and judged at a time, None for all; in between, the rows that stand go back to the
        drafter through the `down` of `downsampler`, None for the upsampler's own.
    decoding: how the drafter itself decodes, exactly; None is plainly.
    Raises ValueError for settings out of range and, on use, for a drafter whose grid is not the target's, scaled down.
    """

    drafter: ImagePipeline | ImageModel
    upsampler: Upsampler
    threshold: float = 0.1
    k: int = 8
    radius: int | None = 3
    rows: int | None = None
    stale: bool = False
    decoding: Drafter | None = None
    downsampler: Upsampler | None = None

    def __post_init__(self) -> None:
        check_fields(self, infinite=("threshold",))
        if not self.threshold >= 0:
            raise ValueError(f"threshold: expected 0 or more, got {self.threshold}; probabilities reach 1")
        if self.k < 1:
            raise ValueError(f"k: expected at least 1 code, the draft itself, got {self.k}; use 1 or more")
        if self.radius is not None and self.radius < 0:
            raise ValueError(
                f"radius: expected 0 or more cells or None, got {self.radius}; use None for all that follows"
            )
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows: expected at least 1 row or None, got {self.rows}; use None for the whole picture")
        if self.rows is not None and not hasattr(self.downsampler or self.upsampler, "down"):
            raise ValueError(f"downsampler: expected one with `down` for rows={self.rows}, got none; give a PixelUpsampler or "
                             "draw the whole picture with rows=None")  # fmt: skip

    @property
    def name(self) -> str:
        """What tables print: the threshold and pool, the radius, and whether keys and values are left stale."""
        reach = "all" if self.radius is None else self.radius
        return f"mulo_{self.threshold:g}_k{self.k}_r{reach}{'_stale' if self.stale else ''}"

    @property
    def model(self) -> ImageModel:
        """The drafter's model."""
        return self.drafter.model if isinstance(self.drafter, ImagePipeline) else self.drafter

    def rule(self, model: ImageModel) -> LocalThreshold:
        """The rule this decoding is judged by."""
        return LocalThreshold(self.threshold, pools(model.codebook(), self.k), self.radius, model.geometry)

    def open(self, target: CanvasTarget) -> MuLoState:
        large, small, scale = target.geometry, self.model.geometry, self.upsampler.scale
        if len(large.grids) > 1 or len(small.grids) > 1:
            raise ValueError(f"geometry: expected one grid a model, got {large.grids} and {small.grids}; use models of one "
                             "grid")  # fmt: skip
        if large.frames > 1 or small.frames > 1:
            raise ValueError(f"geometry: expected one frame a model, got {large.frames} and {small.frames}; use models of "
                             "images")  # fmt: skip
        if (large.rows, large.cols) != (small.rows * scale, small.cols * scale):
            raise ValueError(f"drafter: expected a grid of {large.rows} x {large.cols} codes divided by {scale}, got "
                             f"{small.rows} x {small.cols}; use a drafter and upsampler that fit")  # fmt: skip
        return MuLoState(self, target)
