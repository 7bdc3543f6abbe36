"""The target's side of one image request: all of its state, none of it on modules."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.core.batch_target import NOT_FINITE, BatchTarget
from mmspec.core.draft import Draft, expand_tree, root_only
from mmspec.core.evidence import Evidence, neutralised
from mmspec.core.verdict import Verdict, run_of
from mmspec.imagegen.model import ImageModel, Scored
from mmspec.imagegen.sampling import Guidance, Warp

Listener = Callable[[int, int], None]


class ImageTarget(BatchTarget):
    """A batch of images being generated in raster order.

    values: int64 [B, total], what has been generated.   filled: per row, how many of them.
    last: int64 [B], index of the root among the row's values, -1 before the first.
    hidden of the evidence: float [B, N, C * H], the branches side by side.
    prompt_hidden: float [C * B, P, H], the prompt's states, rows as in the cache; None from models that keep none.
    listener(row, filled): called for each row after every round that added values to it.
    """

    def __init__(
        self, model: ImageModel, condition: object, *, guidance: Guidance, warp: Warp,
        listener: Listener | None = None,
    ):  # fmt: skip
        super().__init__(model.rows(condition))
        self.model, self.condition, self.guidance, self.warp = model, condition, guidance, warp
        self.geometry, self.greedy, self.listener = model.geometry, warp.greedy, listener
        self.total, self.copies = model.geometry.total, 2 if guidance.paired else 1
        self.cache = model.cache(model.layers, self.total + 64, copies=self.copies)
        device = model.device
        # one column more than there are values takes what a run has beyond the end
        self._stored = torch.zeros(self.batch, self.total + 1, dtype=torch.long, device=device)
        self.values = self._stored[:, : self.total]
        self.filled = [0] * self.batch
        self.pending = torch.zeros(self.batch, dtype=torch.long, device=device)
        self.last = torch.full((self.batch,), -1, device=device)
        self.prompt_hidden: Tensor | None = None
        self._rules = _Forcing(model, device)

    @property
    def emitted(self) -> list[int]:
        return self.filled

    @property
    def room(self) -> list[int]:
        return [self.total - filled for filled in self.filled]

    @property
    def left(self) -> int:
        """Values the slowest live row still lacks; drafting more is useless."""
        return max((room for room, live in zip(self.room, self.live, strict=True) if live), default=0)

    @property
    def device(self) -> torch.device:
        return self.values.device

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

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        accepted = self.take_paths(verdict, evidence.bad)
        self._store(run_of(draft, verdict)[0])
        self.cache.commit(self.paths)
        self.last = self.last + self.steps
        self.pending = verdict.correction
        return accepted

    def take(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        """Counts a live row's new values, see `BatchTarget.take`; they are stored on the device."""
        count = min(depth + (not failure), self.total - self.filled[row])
        self._count(row, self.filled[row] + count, bool(failure))
        return min(depth, count)

    def _count(self, row: int, filled: int, failed: bool) -> None:
        """Notes how far a live row has come, and whether it goes on."""
        self.filled[row] = filled
        self.live[row] = filled < self.total
        if failed:
            self.fail(row, NOT_FINITE, f"{filled} of {self.total} values")
        if self.listener is not None:
            self.listener(row, self.filled[row])

    def _store(self, run: Tensor) -> None:
        place = self.last[:, None] + 1 + torch.arange(run.shape[1], device=self.device)
        inside = place < torch.tensor(self.filled, device=self.device)[:, None]
        self._stored.scatter_(1, torch.where(inside, place, self.total).clamp(max=self.total), run)


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
