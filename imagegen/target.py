"""The target's side of one image request: all of its state, none of it on modules."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.batch_target import NOT_FINITE
from mmspec.core.draft import Draft, expand_tree, root_only
from mmspec.core.evidence import Evidence, neutralised
from mmspec.imagegen.model import ImageModel, Scored
from mmspec.imagegen.raster_target import Listener, RasterTarget
from mmspec.imagegen.sampling import Guidance, Warp


class ImageTarget(RasterTarget):
    """A batch of images being generated in raster order; values: int64 [B, total].

    hidden of the evidence: float [B, N, C * H], the branches side by side.
    prompt_hidden: float [C * B, P, H], the prompt's states, rows as in the cache; None from models that keep none.
    """

    not_finite = NOT_FINITE

    def __init__(
        self, model: ImageModel, condition: object, *, guidance: Guidance, warp: Warp,
        listener: Listener | None = None,
    ):  # fmt: skip
        self.copies = 2 if guidance.paired else 1
        total, like = model.geometry.total, torch.zeros((), dtype=torch.long, device=model.device)
        cache = model.cache(model.layers, total + 64, copies=self.copies)
        super().__init__(model.rows(condition), total, like, cache, listener)
        self.model, self.condition, self.guidance, self.warp = model, condition, guidance, warp
        self.geometry, self.greedy = model.geometry, warp.greedy
        self.prompt_hidden: Tensor | None = None
        self._rules = _Forcing(model, model.device)

    @property
    def left(self) -> int:
        """Values the slowest live row still lacks; drafting more is useless."""
        return max((room for room, live in zip(self.room, self.live, strict=True) if live), default=0)

    @torch.no_grad()
    def prefill(self) -> tuple[Draft, Evidence]:
        scored, slots = self.model.prefill(self.condition, self.cache, self.copies == 2)
        self.prompt_hidden = scored.prompt_hidden
        # the prompt's last position is the root of round 0, so its slot is left for the commit to count
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
        return self._evidence(draft, self.model.forward(value, index, bias, self.cache))

    def places(self, draft: Draft) -> Tensor:
        """int64 [B, N], the index of every node's value; -1 for the end of the prompt."""
        if draft.index is not None:
            return draft.index
        return self.last[:, None] + expand_tree(draft.tree.depth, self.batch)

    def _evidence(self, draft: Draft, scored: Scored) -> Evidence:
        hidden = scored.hidden
        index = self.places(draft) + 1  # which value each node decides
        logits, bad = neutralised(self.guided(scored.logits, index))
        if self.copies > 1:
            hidden = torch.cat(hidden.chunk(2), -1)
        scores = self.warped(logits, index)
        return Evidence(scores=scores, greedy=self.greedy, hidden=hidden, bad=bad)

    def guided(self, logits: Tensor, index: Tensor) -> Tensor:
        """Guided logits float32 [B, N, V] of raw ones [C * B, N, V]; index: int64 [B, N], which value each row decides."""
        if self.copies == 1:
            return logits
        cond, uncond = logits.chunk(2)
        return self.guidance.apply(cond, uncond, index, self.geometry.total)

    def warped(self, logits: Tensor, index: Tensor) -> Tensor:
        """Log-weights of the law that values are drawn from, [B, N, V]: guided logits after the forced values and the warp."""
        return self._rules(logits, index, self.warp)


class _Forcing:
    """Warps logits and pins what the geometry forces: codes everywhere else, one value where one is forced."""

    def __init__(self, model: ImageModel, device: torch.device):
        self.codes, self.total = model.codes, model.geometry.total
        forced = model.geometry.forced.to(device)
        self.forced = forced if bool((forced >= 0).any()) else None
        self.extra = model.size > model.codes

    def __call__(self, logits: Tensor, index: Tensor, warp: Warp) -> Tensor:
        if self.extra:
            logits = logits.index_fill(-1, torch.arange(self.codes, logits.shape[-1], device=logits.device), -torch.inf)
        scores = warp.apply(logits)
        if self.forced is None:
            return scores
        value = self.forced[index.clamp(max=self.total - 1)][..., None]
        pinned = torch.full_like(scores, -torch.inf).scatter_(-1, value.clamp_min(0), 0.0)
        return torch.where(value >= 0, pinned, scores)
