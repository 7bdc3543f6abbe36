"""The memory of a model's weights, and of a token and a row of its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.layers.compat import CACHE, read_by_number
from mmspec.core.layers.fingerprint import made_once
from mmspec.vlm.architectures import Parts

UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    dtype: str  # of the weights and the cache
    parameters: int  # of the whole model
    weights: int  # bytes
    per_token: int | None = None  # bytes of keys and values; None where unknown
    per_row: int | None = None  # bytes of recurrent and convolution states; None where unknown
    note: str = ""  # the parts that these figures leave out

    def of_request(self, tokens: int) -> int | None:
        """Return the bytes of a row, None where they are unknown."""
        return None if self.per_token is None else self.per_token * tokens + (self.per_row or 0)


def needs_of(parts: Parts) -> MemoryNeeds:
    """Return the memory of a loaded model, measured once on a pass over a token."""
    return made_once(parts.model, "memory needs", lambda: _measured(parts), parts.model)


@torch.no_grad()
def _measured(parts: Parts) -> MemoryNeeds:
    weights = list(parts.model.parameters())
    token = torch.zeros(1, 1, dtype=torch.long, device=parts.device)
    layers = parts.decoder(input_ids=token, use_cache=True)[CACHE].layers
    slots, states = (sum(value.nbytes for layer in layers for value in read(layer)) for read in (slots_of, states_of))
    count, held = sum(weight.numel() for weight in weights), sum(weight.nbytes for weight in weights)
    return MemoryNeeds(str(parts.dtype).removeprefix("torch."), count, held, slots, states)


def slots_of(layer: Any) -> list[Tensor]:
    return [value for name in ("keys", "values") if torch.is_tensor(value := getattr(layer, name, None))]


def states_of(layer: Any) -> list[Tensor]:
    states = (read_by_number(getattr(layer, name, None)) for name in ("conv_states", "recurrent_states"))
    return [value for named in states for value in named.values() if torch.is_tensor(value)]


def in_units(count: float) -> str:
    """Return a number of bytes as text, such as "1.5 MB"."""
    value = float(count)
    for unit in UNITS:
        if value < 1000 or unit == UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError("the last unit takes any number")
