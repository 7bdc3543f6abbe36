"""Passes that read a prompt: its first tokens as the class reads them, later ones behind what a cache holds already.

What stands behind committed tokens is read as a draft is: a chain of known tokens, under our own masks and through the closed
forms of recurrent layers, all of it committed. So whatever kind a layer is, a read token leaves what a drafted and accepted
one would have left.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.core.layers.masks import masks
from mmspec.core.tree import line
from mmspec.vlm.architectures import Parts
from mmspec.vlm.capture import Seen, masked, watch
from mmspec.vlm.mixers import drafting
from mmspec.vlm.prompts import last_logits_only, wrapped_logits

_LONGEST = 256  # tokens of text that layers with states read at once: their closed form takes its square in memory


@dataclass(slots=True)
class Read:
    """What reading left. logits: [B, 1, V], behind the last token.   embeds, hidden: [B, n, .], see `Seen`; hidden holds the
    chosen levels where there are any."""

    logits: Tensor
    embeds: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, logits: Tensor, seen: Seen, device: torch.device) -> Self:
        """On one device, whichever layers lie elsewhere."""
        hidden = seen.hidden if seen.levels is None else seen.levels
        return cls(*(one.to(device) for one in (logits[:, -1:], seen.embeds, hidden)))

    def then(self, other: Read) -> Read:
        """Both, one behind the other."""
        embeds, hidden = (torch.cat(pair, 1) for pair in ((self.embeds, other.embeds), (self.hidden, other.hidden)))
        return Read(other.logits, embeds, hidden)


@dataclass(frozen=True, slots=True)
class Rest:
    """What of a prompt is read behind a cache.

    ids: int64 [1, n].   positions: int64 [..., 1, n].   sees: bool [1, n, n], which of these tokens each sees.
    pictures: the forward's arguments for the pictures among them; none where all is text.
    lasting: what every pass is given, see `prompts.lasting`.
    """

    ids: Tensor
    positions: Tensor
    sees: Tensor
    pictures: Mapping[str, object]
    lasting: Mapping[str, Tensor]

    @classmethod
    def text(cls, ids: Tensor, positions: Tensor, lasting: Mapping[str, Tensor]) -> Self:
        count = ids.shape[1]
        sees = torch.ones(1, count, count, dtype=torch.bool, device=ids.device).tril()
        return cls(ids, positions, sees, {}, lasting)

    def part(self, first: int, end: int, pictures: Mapping[str, object] | None = None) -> Rest:
        """Some of the tokens, which see none behind them. pictures: those among them."""
        span = slice(first, end)
        sees, positions = self.sees[:, span, span], self.positions[..., span]
        return replace(self, ids=self.ids[:, span], positions=positions, sees=sees, pictures=pictures or {})

    def split(self, count: int) -> list[Rest]:
        """The first `count` tokens, which hold the pictures, and the others."""
        return [self.part(0, count, self.pictures), self.part(count, self.ids.shape[1])]

    def parts(self, stateful: bool) -> list[Rest]:
        """In pieces that layers with states can read."""
        count = self.ids.shape[1]
        if not stateful or self.pictures or count <= _LONGEST:
            return [self]
        return [self.part(first, min(first + _LONGEST, count)) for first in range(0, count, _LONGEST)]


def read_first(parts: Parts, inputs: dict, levels: tuple[int, ...] | None, device: torch.device) -> Read:
    """The pass over a prompt from its first token on. inputs: as `first_inputs` gives them, the empty cache among them.
    device: of the request."""
    with watch(parts.decoder, levels) as seen:
        logits = parts.model(**inputs, return_dict=True).logits
    return Read.of(logits, seen, device)


def read_rest(parts: Parts, cache: SlotCache, rest: Rest, levels: tuple[int, ...] | None) -> Read:
    """Passes over tokens behind those committed, which commit them."""
    found = None
    for part in rest.parts(bool(parts.plan.stateful)):
        read = _read(parts, cache, part, levels)
        found = read if found is None else found.then(read)
    return found


def _read(parts: Parts, cache: SlotCache, rest: Rest, levels: tuple[int, ...] | None) -> Read:
    count = rest.ids.shape[1]
    tree, dtype = line(count, rest.ids.device), parts.dtype
    inputs = dict(
        input_ids=rest.ids,
        position_ids=rest.positions,
        attention_mask=masks(parts.plan, cache, rest.sees, tree.depth, tree.max_depth, dtype),
        past_key_values=cache,
        use_cache=True,
    )
    inputs |= {name: value.expand(-1, count, *value.shape[2:]) for name, value in rest.lasting.items()}
    with drafting(parts.mixers, cache, tree), watch(parts.decoder, levels) as seen:
        logits = _logits(parts, inputs, rest.pictures)
    cache.commit([list(range(count))])
    return Read.of(logits, seen, rest.ids.device)


def _logits(parts: Parts, inputs: dict, pictures: Mapping[str, object]) -> Tensor:
    """[1, 1, V] behind the last token; pictures need the wrapper, which puts their features in place."""
    if not pictures and parts.direct:
        return parts.head(parts.decoder(**inputs).last_hidden_state[:, -1:])
    inputs = inputs | last_logits_only(parts, inputs["input_ids"])
    if not pictures:
        return wrapped_logits(parts, inputs)[:, -1:]
    mask = inputs["attention_mask"]
    with nullcontext() if mask is None else masked(parts.decoder, mask):
        made = parts.model(**inputs | {"attention_mask": None} | pictures, return_dict=True)
    return made.logits[:, -1:]
