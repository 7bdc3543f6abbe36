"""LazyMAR's feature caches: most passes run the conditional branch alone and compute only some of the decoder's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.imagegen.continuous.masked_target import MaskedModel
from mmspec.imagegen.continuous.schedules.token_cache import FULL_PASS, DecoderPass, TokenCache
from mmspec.io.validation import Share, Size, check_fields
from mmspec.methods import method


@method(
    "lazy",
    domain="continuous",
    kind="schedule",
    title="feature caches (LazyMAR)",
    exact=False,
    models=("masked",),
    order=1,
    about="most passes run only the conditional branch and compute only some of the decoder's tokens",
    paper="LazyMAR: Accelerating Masked Autoregressive Models via Feature Caching",
)
@dataclass(frozen=True, slots=True)
class Lazy:
    """A schedule of partial passes. Relaxed, unless the settings make every pass complete.

    "LazyMAR: Accelerating Masked Autoregressive Models via Feature Caching".

    Args:
        full: The number of complete passes at the start; the paper's by default.
        every: The period of complete passes after the first `full` passes.
        null: Whether partial passes run only the conditional branch of guidance. The unconditional branch is then that
            result plus their last difference.
        tokens: The share of the decoder's tokens that partial passes compute. These are the tokens least similar to
            their last inputs (`TokenCache`), besides the requested tokens and those whose value changed. None computes
            all.

    Raises:
        ValueError: A setting is out of range.
    """

    full: Size = 5
    every: Size = 9
    null: bool = True
    tokens: Share | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.tokens is None and not self.null:
            raise ValueError("tokens: expected a share where null is off, got None; leave lazy out to cache nothing")

    @property
    def name(self) -> str:
        """The name in tables."""
        tokens = "" if self.tokens is None else f"{' null+' if self.null else ' '}tokens {self.tokens:g}"
        return f"lazy {self.full}-{self.every}{tokens}"

    @property
    def plain(self) -> bool:
        """Whether every pass is complete."""
        return self.every == 1 or (self.tokens == 1 and not self.null)

    def whole(self, number: int) -> bool:
        return number < self.full or (number - self.full + 1) % self.every == 0

    def requests(self, mask: Tensor, wanted: Tensor | None) -> Tensor:
        """Return bool [B, L], the tokens that a partial pass computes beside changed tokens: the requested tokens."""
        return wanted_mask(wanted, mask)


class CacheSchedule(Protocol):
    null: bool  # whether partial passes run only the conditional branch
    tokens: float | None  # the share of the decoder's tokens that they compute besides; None for all

    def whole(self, number: int) -> bool:
        """Return whether pass `number`, from 0 up, is complete."""

    def requests(self, mask: Tensor, wanted: Tensor | None) -> Tensor:
        """Return bool [B, L], the tokens that a partial pass computes beside changed tokens, of the masked `mask` bool
        [B, L] and the positions read, `wanted` int64 [B, N], L for none; None for all."""


class FeatureCachedModel:
    """A `MaskedModel` for a single request, with its caches: it decides which tokens a pass computes."""

    def __init__(self, model: MaskedModel, lazy: CacheSchedule):
        self.model, self.lazy = model, lazy
        self.cache = None if lazy.tokens is None else TokenCache(lazy.tokens)
        self.passes = self.skipped = 0  # those without the unconditional branch
        self._gap: Tensor | None = None
        self._seen: tuple[Tensor, Tensor] | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def condition(
        self, tokens: Tensor, mask: Tensor, labels: Tensor, paired: bool, wanted: Tensor | None = None
    ) -> Tensor:
        whole = self.lazy.whole(self.passes)
        self.passes += 1
        alone = paired and self.lazy.null
        slots = self._slots(tokens, mask, wanted, whole, len(tokens) if alone else None)
        if whole or not alone:
            z = self.model.condition(tokens, mask, labels, paired, wanted, slots)
            self._gap = z[1] - z[0] if alone else None
            return z
        self.skipped += 1
        z = self.model.condition(tokens, mask, labels, False, wanted, slots)[0]
        return torch.stack((z, z + self._gap))

    def _slots(self, tokens: Tensor, mask: Tensor, wanted: Tensor | None, whole: bool, rows: int | None) -> DecoderPass:
        """Return the tokens to compute; `rows` is the number of rows of the next partial passes, None for the current."""
        if self.cache is None:
            return FULL_PASS
        before, self._seen = self._seen, (tokens.clone(), mask.clone())
        if whole:
            return self.cache.whole(rows)
        # besides newly known tokens: a rejected draft is masked again, or has another value
        changed = (mask != before[1]) | ((tokens != before[0]).any(-1) & ~mask)
        return self.cache.part(changed | self.lazy.requests(mask, wanted))


def wanted_mask(wanted: Tensor | None, mask: Tensor) -> Tensor:
    """Return bool [B, L], True at the positions `wanted`, int64 [B, N]: L for none, None for all."""
    if wanted is None:
        return torch.ones_like(mask)
    return mask.new_zeros(len(mask), mask.shape[1] + 1).scatter_(1, wanted, True)[:, :-1]
