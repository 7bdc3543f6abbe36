"""The search for sub-layers of a target that its draft can do without."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.io.validation import number, whole
from mmspec.vlm.drafters.base.self_draft import SelfDraftState
from mmspec.vlm.partial_passes import SubLayer, layers, slots_ahead
from mmspec.vlm.target import TextTarget

_PARTS = ("attention", "mlp")


@dataclass(frozen=True, slots=True)
class SearchLimits:
    goal: float = 0.95  # the score at which the search ends
    patience: int = 300  # the trials without a gain after which it ends
    most: int = 1000  # the trials after which it ends


class LayerSet:
    """The sub-layers that are left out, and the search for a better set; requests that share the object share both.

    Trials alternate between a random set, as in SWIFT, and the best set with one sub-layer exchanged, in place of SWIFT's
    Gaussian process.

    Args:
        count: The layers of the target, of which the first and the last are never left out.
        share: The share of the sub-layers of the others to leave out; 0 for none.
        limits: The end of the search.
        seed: The seed of the trials.

    Attributes:
        skipped: The best set so far, at first evenly spread over the layers.
        score: Its score, None before a trial of it.
        trials: The trials so far.

    Raises:
        ValueError: The share is outside [0, 1).
    """

    def __init__(self, count: int, share: float = 0.45, limits: SearchLimits | None = None, seed: int = 0):
        count = whole("count", count, 1)
        if not 0 <= number("share", share) < 1:
            raise ValueError(f"share: expected a share of the sub-layers in [0, 1), got {share}; 0.45 is SWIFT's")
        self.count, self.limits = count, limits or SearchLimits()
        self.free: list[SubLayer] = [(layer, part) for layer in range(1, count - 1) for part in _PARTS]
        size = int(share * len(self.free))
        middles = [(2 * n + 1) * len(self.free) // (2 * size) for n in range(size)]  # of `size` equal stretches
        self.skipped = frozenset(self.free[place] for place in middles)
        self.score: float | None = None
        self.trials = self._idle = 0
        self._random = random.Random(seed)

    @property
    def finished(self) -> bool:
        """Whether the search has ended."""
        limits = self.limits
        reached = self.score is not None and self.score >= limits.goal
        return not self.skipped or reached or self._idle >= limits.patience or self.trials >= limits.most

    def trial(self) -> frozenset[SubLayer]:
        """Return the set to score next; the first is `skipped` itself."""
        if self.score is None:
            return self.skipped
        if self.trials % 2:
            return frozenset(self._random.sample(self.free, len(self.skipped)))
        rest = [part for part in self.free if part not in self.skipped]
        out = self._random.choice(sorted(self.skipped))
        return self.skipped - {out} | {self._random.choice(rest)}

    def learn(self, skipped: frozenset[SubLayer], score: float) -> None:
        """Count a trial and keep its set if its score is higher, so that the kept score never falls."""
        self.trials += 1
        self._idle += 1
        if self.score is None or score > self.score:
            self.skipped, self.score, self._idle = skipped, score, 0


@torch.no_grad()
def agreement(target: TextTarget, window: int, skipped: frozenset[SubLayer]) -> float:
    """Return the share of the last `window` committed tokens whose successor the target predicts without `skipped`. The
    pass's keys and values lie behind the committed length and count for nothing. Stopped rows do not count. Every live
    row needs more than `window` generated tokens: pictures and the prompt are left alone."""
    parts, cache = target.parts, slots_ahead(target.cache, 0)
    rows = [
        tokens[-window - 1 :] if alive else [0] * (window + 1)
        for tokens, alive in zip(target.tokens, target.live, strict=True)
    ]
    ids = torch.tensor(rows, device=target.device)
    step = torch.arange(window, device=target.device)
    position = target.positions_of((step - window).expand(target.batch, -1))
    mask = _reading_again(cache.width, cache.length, cache.hidden, window, parts.dtype)
    out = layers(parts, parts.embed(ids[:, :-1]), 0, parts.layers, position, cache, mask, skipped)
    hits = parts.head(parts.decoder.norm(out)).argmax(-1) == ids[:, 1:]
    return float(hits[torch.tensor(target.live, device=hits.device)].float().mean())


def _reading_again(width: int, length: Tensor, hidden: Tensor | None, window: int, dtype: torch.dtype) -> Tensor:
    """Return bias [B, 1, window, width + window]: node i sees slots before the window, and new slots up to its own."""
    slot = torch.arange(width + window, device=length.device) - length[:, None]  # [B, S], counted from the new slots
    node = torch.arange(window, device=length.device)[:, None]
    sees = (slot < -window)[:, None] | ((slot >= 0)[:, None] & (slot[:, None] <= node))
    if hidden is not None:
        sees[:, :, : hidden.shape[1]] &= ~hidden[:, None]
    bias = torch.zeros(sees.shape, dtype=dtype, device=length.device)
    return bias.masked_fill(~sees, torch.finfo(dtype).min)[:, None]


def can_score(target: TextTarget, window: int) -> bool:
    return all(len(tokens) > window for tokens in _live(target)) and any(target.live)


def _live(target: TextTarget) -> Sequence[list[int]]:
    return [tokens for tokens, alive in zip(target.tokens, target.live, strict=True) if alive]


class SearchingState(SelfDraftState):
    """Drafts without a `LayerSet`'s sub-layers, and scores a set on the last `window` generated tokens each round."""

    def __init__(self, target: TextTarget, length: object, layer_set: LayerSet, window: int):
        super().__init__(target, length)
        self.layer_set, self.window = layer_set, window

    def choose_part(self) -> None:
        self.layers = self.target.parts.layers, self.layer_set.skipped

    def observe(self, target: TextTarget, *outcome: object) -> None:
        if self.layer_set.finished or not can_score(target, self.window):
            return
        skipped = self.layer_set.trial()
        self.passes += 1
        self.layer_set.learn(skipped, agreement(target, self.window, skipped))
