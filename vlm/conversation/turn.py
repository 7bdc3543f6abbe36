"""One turn of a conversation as a request sees it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.cache import Mark, SlotCache
from mmspec.core.fingerprint import Fingerprint
from mmspec.vlm.reading import Rest


@dataclass(frozen=True, slots=True)
class Settled:
    """A place in a prompt that layers with states can go back to. count: tokens before it.   mark: the cache there.
    hidden: float [1, 1, F], the states behind the last of them, as drafters read them."""

    count: int
    mark: Mark
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class Turn:
    """What a request is given of the turns before it.

    start: tokens of the prompt that `cache` holds; 0 where the prompt is read from its first token on.
    cache, rest: what holds them, and what is to be read; None with `start` 0.
    before: float [1, 1, F], the states behind token start - 1; None where that token is known to drafters with the one behind
        it.   forget: so many pairs that a drafter has read are no longer the prompt's.
    tail: so many of the prompt's last tokens may be other ones in a later turn's rendering; 0 where none is known to be.
    function: the fingerprint of the model when the turn opened.   drafting: that of the drafter's modules.
    """

    start: int = 0
    cache: SlotCache | None = None
    rest: Rest | None = None
    before: Tensor | None = None
    forget: int = 0
    tail: int = 0
    function: Fingerprint | None = None
    drafting: Fingerprint | None = None
