"""MuLo: an image drafted from a smaller image, verified a block of rows at a time, its islands refilled side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import Drafter
from mmspec.core.round.tree import chains
from mmspec.imagegen.any_order import AnyOrderDecoding, AnyOrderTarget
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.multiscale.local_threshold import LocalThreshold, code_pools, island_order
from mmspec.imagegen.multiscale.low_resolution import draft_low_resolution
from mmspec.imagegen.multiscale.upsamplers import PixelUpsampler, Upsampler
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.imagegen.rules.lantern import codebook_table
from mmspec.io.validation import Count, Range, Size, check_fields
from mmspec.methods import MethodParts, method


@dataclass(frozen=True, slots=True)
class MuLo(AnyOrderDecoding):
    """Multi-scale local speculative decoding: a low-resolution model and an upsampler draft. Relaxed.

    "Multi-Scale Local Speculative Decoding for Image Generation" (MuLo-SD; no public code). One pass verifies a block
    of rows (see `LocalThreshold`). Each later round redraws a value per island of rejected cells in raster order, over
    the stale keys of accepted values. Then all values from the first rejection on are fed again with the next block,
    unless `stale`. Our choices where the paper is silent: the target draws the very first value; an island's first
    column follows the rejected candidate where the previous row's end is missing; the first rejection is redrawn before
    islands are cut.

    Args:
        drafter: A pipeline or model for the small image with the same codebook family. It gets the target's condition,
            guidance and temperature.
        upsampler: See `Upsampler`.
        threshold: The pooled probability that a candidate needs; 0 accepts all, above 1 is plain decoding.
        k: The number of pooled codes, the candidate included.
        radius: The cells around a rejection that are redrawn; None for all that follow.
        rows: The low-resolution rows per block, None for all. Between blocks, the accepted rows go back to the drafter
            through `down` of the downsampler.
        stale: Whether keys and values that were computed with rejected candidates in sight are left unchanged.
        decoding: The exact drafter of the low-resolution model; None for plain decoding.
        downsampler: The upsampler for `down`; None for `upsampler`.

    Raises:
        ValueError: A setting is out of range or, on use, the drafter's grid is not the target's grid scaled down.
    """

    drafter: ImagePipeline | ImageModel
    upsampler: Upsampler
    threshold: Annotated[float, Range(0, infinite=True)] = 0.1
    k: Size = 8
    radius: Count | None = 3
    rows: Size | None = None
    stale: bool = False
    decoding: Drafter | None = None
    downsampler: Upsampler | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rows is not None and not hasattr(self.downsampler or self.upsampler, "down"):
            raise ValueError(
                f"downsampler: expected an upsampler with `down` for rows={self.rows}, got none; give a "
                "PixelUpsampler or draft the whole image with rows=None"
            )

    @property
    def name(self) -> str:
        reach = "all" if self.radius is None else self.radius
        return f"mulo_{self.threshold:g}_k{self.k}_r{reach}{'_stale' if self.stale else ''}"

    @property
    def model(self) -> ImageModel:
        """The drafter's model."""
        return self.drafter.model if isinstance(self.drafter, ImagePipeline) else self.drafter

    def rule(self, model: ImageModel) -> LocalThreshold:
        return LocalThreshold(self.threshold, codebook_table(model, code_pools, self.k), self.radius, model.geometry)

    def open(self, target: AnyOrderTarget) -> MuLoState:
        large, small, scale = target.geometry, self.model.geometry, self.upsampler.scale
        if len(large.grids) > 1 or len(small.grids) > 1:
            raise ValueError(
                f"geometry: expected a single grid per model, got {large.grids} and {small.grids}; use "
                "models of a single grid"
            )
        if large.frames > 1 or small.frames > 1:
            raise ValueError(
                f"geometry: expected a single frame per model, got {large.frames} and {small.frames}; use "
                "models of images"
            )
        if (large.rows, large.cols) != (small.rows * scale, small.cols * scale):
            raise ValueError(
                f"drafter: expected a grid of {large.rows} x {large.cols} codes divided by {scale}, got "
                f"{small.rows} x {small.cols}; use a drafter and upsampler that fit"
            )
        return MuLoState(self, target)


class MuLoState:
    """All images of a batch are in the same block; those with fewer or smaller islands wait."""

    def __init__(self, settings: MuLo, target: AnyOrderTarget):
        self.settings, self.low = settings, settings.model
        self.passes = 0
        self.cells = target.geometry.code_index.to(target.device)
        self.candidates = target.values.clone()  # int64 [B, total], the upsampled values
        self.row = 0  # verified rows of the small image
        self.start = 0  # the first place behind the verified block
        self.step = 0  # finished rounds of `order`
        self.feeds_earlier: list[bool] = []  # per round, whether an earlier value has to be fed besides
        self.order: Tensor | None = None  # int64 [B, K, M], places that islands draw in turn, `total` for none
        self.unfed: Tensor | None = None  # int64 [B, K'], places drawn in the last round, not fed yet
        self.fed_again_from: int | None = None  # the place of the verified block from which all values are fed again

    def propose(self, target: AnyOrderTarget, keys: Keys) -> Draft:
        if self.step < len(self.feeds_earlier):
            return self._fill(target)
        self._sketch(target, keys)
        # rounds are numbered by the block's first place, since the rounds before it depend on the other rows
        keys.round = max(self.start, 1)
        return self._judge(target)

    def _sketch(self, target: AnyOrderTarget, keys: Keys) -> None:
        settings, low = self.settings, self.low.geometry
        scale, done = settings.upsampler.scale, self.row
        rows = min(settings.rows or low.rows, low.rows - done)
        before = target.values.new_zeros(target.batch, 0, low.cols)
        if done:
            filled = target.values[:, self.cells].view(target.batch, -1, target.geometry.cols)
            before = (settings.downsampler or settings.upsampler).down(filled[:, : done * scale])
        new, passes = draft_low_resolution(
            self.low,
            target.condition,
            guidance=target.guidance,
            warp=target.warp,
            keys=keys.child(done),
            drafter=settings.decoding,
            before=before,
            rows=rows,
        )
        self.passes += passes
        codes = settings.upsampler.up(torch.cat((before, new), 1))[:, done * scale :].flatten(1)
        first = done * scale * target.geometry.cols
        self.candidates[:, self.cells[first : first + codes.shape[1]]] = codes
        self.row += rows

    def _judge(self, target: AnyOrderTarget) -> Draft:
        """Draft a chain over the block's candidates behind the last settled value, and the places to feed again."""
        cols, batch, device = target.geometry.cols, target.batch, target.device
        last = int(target.geometry.code_index[self.row * self.settings.upsampler.scale * cols - 1])
        root = max(self.start - 1, 0)  # value 0 is settled by the prefill
        chain = torch.arange(root, last + 1, device=device)
        extra = self._again(target, root)
        index = torch.cat((chain.expand(batch, -1), extra), 1)
        inside = index.clamp(max=target.total - 1)
        value = torch.where(target.known, target.values, self.candidates).gather(1, inside)
        wanted = torch.arange(index.shape[1], device=device) < len(chain) - 1
        tree = chains((len(chain) - 1,) + (0,) * extra.shape[1], device)
        self.start, self.unfed, self.feeds_earlier = last + 1, None, []
        return Draft(value, tree, Law("none"), index < target.total, index, wanted.expand_as(index))

    def _again(self, target: AnyOrderTarget, root: int) -> Tensor:
        """Return the places before the root to feed again, int64 [B, n], `total` for none."""
        none = torch.empty(target.batch, 0, dtype=torch.long, device=target.device)
        if self.settings.stale:
            return none if self.unfed is None else torch.where(self.unfed == root, target.total, self.unfed)
        if self.fed_again_from is None or self.fed_again_from >= root:
            return none
        return torch.arange(self.fed_again_from, root, device=target.device).expand(target.batch, -1)

    def _fill(self, target: AnyOrderTarget) -> Draft:
        """Feed the predecessor of every island's next place, and the values that no predecessor feeds."""
        wanted = self.order[..., self.step]
        before = torch.where(wanted < target.total, wanted - 1, target.total)
        known = target.known.gather(1, before.clamp(max=target.total - 1))
        index, valid = before, known & (before < target.total)
        if self.feeds_earlier[self.step]:
            alone = (self.unfed < target.total) & (self.unfed[..., None] != before[:, None]).all(-1)
            index, valid = torch.cat((before, self.unfed), 1), torch.cat((valid, alone), 1)
            index = torch.where(
                torch.arange(index.shape[1], device=index.device) < before.shape[1],
                index,
                torch.where(valid, index, target.total),
            )
        inside = index.clamp(max=target.total - 1)
        value = torch.where(target.known, target.values, self.candidates).gather(1, inside)
        draws = pad(wanted < target.total, (0, index.shape[1] - wanted.shape[1]), value=False)
        self.unfed, self.step = wanted, self.step + 1
        return Draft(value, chains((0,) * index.shape[1], target.device), Law("none"), valid, index, draws)

    def observe(self, target: AnyOrderTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        if self.row and self.unfed is None:  # the block was just verified
            self._plan(target)

    def _plan(self, target: AnyOrderTarget) -> None:
        """Cut the rejected cells into islands; a transfer to the host gives the number of rounds."""
        geometry, total = target.geometry, target.total
        running = torch.tensor(target.live, device=target.device)[:, None]
        place = torch.arange(total, device=target.device)
        block = place < self.start
        fallen = block & ~target.known & running
        order = island_order(fallen[:, self.cells].view(-1, geometry.rows, geometry.cols))
        self.order = torch.where(order < 0, total, self.cells[order.clamp_min(0)])
        # the first rejection, at most one a row
        drawn = block & target.known & ~target.stored & (place > 0) & running
        first = torch.where(drawn, place, total).amin(1, keepdim=True)
        self.unfed, self.step = first, 0
        last = torch.cat(
            (pad(first[..., None], (0, 0, 0, order.shape[1] - 1), value=total)[:, : order.shape[1]], self.order), 2
        )
        late = ((last[..., :-1] < total) & (last[..., 1:] != last[..., :-1] + 1)).flatten(0, 1).any(0)
        self.fed_again_from, *on_host = torch.cat((first.amin()[None], late.long())).tolist()
        self.feeds_earlier = [bool(flag) for flag in on_host]


@method(
    "mulo",
    domain="image",
    kind="decoding",
    title="MuLo-SD",
    exact=False,
    about="a small image drafts a large one",
    paper="Multi-Scale Local Speculative Decoding for Image Generation",
    needs=("low",),
    order=22,
)
def mulo(
    parts: MethodParts,
    threshold: float = 0.05,
    upsampler: Literal["pixels", "learned"] = "pixels",
    k: int = 64,
    radius: int = 1,
) -> MuLo:
    """`MuLo` over the low-resolution model that belongs to a model, with defaults for grids of 16 x 16.

    `k` is the number of neighbours that LANTERN uses there. The paper's radius of 3 would cover a fifth of such a grid.

    Args:
        parts: The model, "low" (the model of the small image) and, for `upsampler="learned"`, "upsampler".
        threshold: The pooled probability that a candidate needs.
        upsampler: How the small image becomes candidates: through pixels, or by a trained model.
        k: The number of pooled codes, the candidate included.
        radius: The cells around a rejection that are redrawn.
    """
    scaler = parts.part("upsampler") if upsampler == "learned" else PixelUpsampler.of(parts.model.vq)
    return MuLo(parts.part("low"), scaler, threshold, k=min(k, parts.model.codes), radius=radius)
