"""The target of an image request in raster order: guidance, sampling settings, the values of every row and the passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from mmspec.core.layers.fingerprint import modules_of
from mmspec.core.round.batch_target import NOT_FINITE
from mmspec.core.round.draft import Draft, Evidence, Verdict, expand_tree, neutralise_bad_scores, root_only, run_of
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.sampling import truncated_scores
from mmspec.imagegen.filled_target import FilledTarget, Listener
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.model import ImageModel, ImageModelOutput
from mmspec.io.validation import LARGEST_SCALE, Count, Range, check_fields, number

MIN_TEMPERATURE = 1e-5
FilterOrder = Literal["top_k_first", "top_p_first"]


@dataclass(frozen=True, slots=True)
class Guidance:
    """Classifier-free guidance on raw logits: uncond + s (cond - uncond).

    Args:
        scale: The scale s; up to 1 only the conditional branch runs.
        interval: The indices 0..interval + 1 are guided and later indices are conditional, as with LlamaGen's
            `cfg_interval`; None or a negative number guides all.
        final: The scale at the last value; s goes linearly from `scale` to `final`. None for a constant scale.

    Raises:
        ValueError: A scale is outside 0..1000, or both `interval` and `final` are set.
    """

    scale: float = 1.0
    interval: int | None = None
    final: float | None = None

    def __post_init__(self) -> None:
        for scale in (self.scale, self.final or 0.0):
            number("guidance_scale", scale, 0, LARGEST_SCALE)
        check_fields(self)
        if self.interval is not None and self.final is not None:
            raise ValueError("guidance: expected an interval or a final scale, got both; leave one out")

    @property
    def paired(self) -> bool:
        """Whether the unconditional branch runs too."""
        return max(self.scale, self.final or 0.0) > 1

    def apply(self, cond: Tensor, uncond: Tensor, index: Tensor, total: int) -> Tensor:
        """Return guided logits float32 [B, N, V] of both branches'; `index` int64 [B, N] is each value's."""
        if self.final is not None:
            scale = self.scale + (self.final - self.scale) * (index / max(total - 1, 1)).clamp(0, 1)
            return torch.lerp(uncond, cond, scale[..., None].to(cond.dtype))
        guided = uncond + self.scale * (cond - uncond)
        if self.interval is None or self.interval < 0:
            return guided
        return torch.where((index <= self.interval + 1)[..., None], guided, cond)


@dataclass(frozen=True, slots=True)
class Warp:
    """Temperature, top-k and top-p.

    Args:
        temperature: 0 is greedy; other temperatures count as at least 1e-5, as in LlamaGen's sampler.
        top_k: The number of likeliest values to keep; 0 keeps all.
        top_p: The probability mass to keep; 1 keeps all.
        filter_order: "top_k_first" as in transformers and LlamaGen's sampler, "top_p_first" as in LANTERN's public
            code. The orders differ only with both filters on: the second filter sees the distribution that the first
            leaves.

    Raises:
        ValueError: A setting is out of range.
    """

    temperature: Annotated[float, Range(0)] = 1.0
    top_k: Count = 0
    top_p: Annotated[float, Range(above=0, most=1, hint="1 keeps all values")] = 1.0
    filter_order: FilterOrder = "top_k_first"

    __post_init__ = check_fields

    @property
    def greedy(self) -> bool:
        """Whether the likeliest value is always chosen."""
        return self.temperature == 0

    def apply(self, logits: Tensor) -> Tensor:
        """Return log-weights float32 [..., V], -inf where cut; their softmax is the distribution."""
        if self.greedy:
            return logits
        if self.temperature != 1:
            logits = logits / max(self.temperature, MIN_TEMPERATURE)
        return truncated_scores(logits, self.top_k, self.top_p, self.filter_order)


class RasterTarget(FilledTarget):
    """Base of raster-order targets; `last` int64 [B] is the root's index among the values, -1 before the first."""

    def __init__(self, batch: int, total: int, like: Tensor, cache: SlotPool, listener: Listener | None):
        super().__init__(batch, total, like, listener)
        self.cache = cache
        self.last = torch.full((batch,), -1, device=like.device)

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        accepted = self.commit_paths(verdict, evidence.bad)
        self._store(run_of(draft, verdict)[0])
        self.cache.commit(self.paths)
        self.last = self.last + self.steps
        self.pending = verdict.correction
        return accepted

    def commit_row(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        count = min(depth + (not failure), self.total - self.filled[row])
        self._count(row, self.filled[row] + count, bool(failure))
        return min(depth, count)

    def _store(self, run: Tensor) -> None:
        """Store [B, D + 1, ...], the values behind the root; those beyond a row's end go to the spare column."""
        place = self.last[:, None] + 1 + torch.arange(run.shape[1], device=self.device)
        inside = place < torch.tensor(self.filled, device=self.device)[:, None]
        self.put(torch.where(inside, place, self.total), run)


class ImageTarget(RasterTarget):
    """A batch of images in raster order, values int64 [B, total]. The evidence's states are float [B, N, C * H], the
    branches side by side; `prompt_hidden` is float [C * B, P, H], rows as in the cache, or None."""

    not_finite = NOT_FINITE

    def __init__(
        self,
        model: ImageModel,
        condition: object,
        *,
        guidance: Guidance,
        warp: Warp,
        listener: Listener | None = None,
    ):
        self.copies = 2 if guidance.paired else 1
        total, like = model.geometry.total, torch.zeros((), dtype=torch.long, device=model.device)
        cache = model.cache(model.layers, total + 64, copies=self.copies)
        super().__init__(model.rows(condition), total, like, cache, listener)
        self.model, self.condition, self.guidance, self.warp = model, condition, guidance, warp
        self.geometry, self.greedy = model.geometry, warp.greedy
        self.prompt_hidden: Tensor | None = None
        self._force = _forced_values(model.geometry, model.codes, model.size, str(model.device))

    @property
    def left(self) -> int:
        """The number of values that the slowest live row still lacks; longer drafts are useless."""
        return max((room for room, live in zip(self.room, self.live, strict=True) if live), default=0)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        return modules_of(self.model)

    @torch.no_grad()
    def prefill(self) -> tuple[Draft, Evidence]:
        scored, slots = self.model.prefill(self.condition, self.cache, self.copies == 2)
        self.prompt_hidden = scored.prompt_hidden
        # the prompt's last position is the root of round 0, so the first commit counts its slot
        self.cache.advance(slots - 1)
        draft = root_only(self.pending)
        return draft, self._evidence(draft, scored)

    @torch.no_grad()
    def score(self, draft: Draft) -> Evidence:
        index = self.places(draft).clamp(max=self.total - 1)
        plain = draft.tree.nodes == 1 and self.cache.uniform and self.cache.hidden is None
        bias = None if plain else self.cache.bias(draft.tree.ancestor, self.model.dtype)
        value = draft.value
        if self.copies > 1:
            value, index = value.repeat(self.copies, 1), index.repeat(self.copies, 1)
        with self.small_products:
            scored = self.model.forward(value, index, bias, self.cache)
        return self._evidence(draft, scored)

    def places(self, draft: Draft) -> Tensor:
        """Return int64 [B, N], the index of every node's value; -1 for the end of the prompt."""
        if draft.index is not None:
            return draft.index
        return self.last[:, None] + expand_tree(draft.tree.depth, self.batch)

    def _evidence(self, draft: Draft, scored: ImageModelOutput) -> Evidence:
        hidden = scored.hidden
        index = self.places(draft) + 1  # the value that each node predicts
        logits, bad = neutralise_bad_scores(self.guided(scored.logits, index))
        if self.copies > 1:
            hidden = torch.cat(hidden.chunk(2), -1)
        scores = self.warped(logits, index)
        return Evidence(scores=scores, greedy=self.greedy, hidden=hidden, bad=bad)

    def guided(self, logits: Tensor, index: Tensor) -> Tensor:
        """Return guided float32 [B, N, V] of raw logits [C * B, N, V]; `index` int64 [B, N] is each value's."""
        if self.copies == 1:
            return logits
        cond, uncond = logits.chunk(2)
        return self.guidance.apply(cond, uncond, index, self.geometry.total)

    def warped(self, logits: Tensor, index: Tensor) -> Tensor:
        """Return the log-weights [B, N, V] that values are drawn from: guided, warped and with the forced values."""
        return self._force(logits, index, self.warp)


class _ForcedValues:
    """Warp logits and pin the values that the geometry forces; everywhere else only codes are allowed."""

    def __init__(self, geometry: Geometry, codes: int, size: int, device: str):
        self.last = geometry.total - 1
        is_forced = bool((geometry.forced >= 0).any())
        self.forced = geometry.forced.to(device) if is_forced else None
        self.specials = torch.arange(codes, size, device=device) if size > codes else None

    def __call__(self, logits: Tensor, index: Tensor, warp: Warp) -> Tensor:
        if self.specials is not None:
            logits = logits.index_fill(-1, self.specials, -torch.inf)
        scores = warp.apply(logits)
        if self.forced is None:
            return scores
        value = self.forced[index.clamp(max=self.last)][..., None]
        pinned = torch.full_like(scores, -torch.inf).scatter_(-1, value.clamp_min(0), 0.0)
        return torch.where(value >= 0, pinned, scores)


# cached, because building these tensors in every request would wait for the device
_forced_values = lru_cache(maxsize=64)(_ForcedValues)
