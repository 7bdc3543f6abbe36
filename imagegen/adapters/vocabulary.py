"""Between the values of an image and the token ids a language model has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Vocabulary:
    """ids: int64 [V], the token id of every value: codes 0..K-1, then the forced specials.

    Of a plain head only the rows that belong to codes are multiplied: the others are masked in an image span anyway, and an
    image vocabulary is a small part of the whole.
    """

    def __init__(self, codes: Sequence[int], specials: Sequence[int], device: torch.device):
        self.ids = torch.tensor([*codes, *specials], device=device)
        self.codes, self.size = len(codes), len(codes) + len(specials)
        self._low, self._high = min(codes), max(codes) + 1
        contiguous = list(codes) == list(range(self._low, self._high))
        self._place = None if contiguous else self.ids[: self.codes] - self._low

    def to(self, device: torch.device) -> None:
        """Moves the tables."""
        self.ids = self.ids.to(device)
        self._place = None if self._place is None else self._place.to(device)

    def logits(self, head: nn.Linear, hidden: Tensor) -> Tensor:
        """float32 [..., V] of hidden [..., H]; 0 for specials, which the geometry forces."""
        plain = type(head) is nn.Linear and head.bias is None  # else it does more than its weight says
        logits = (
            F.linear(hidden, head.weight[self._low : self._high])
            if plain
            else head(hidden)[..., self._low : self._high]
        )
        logits = logits.float()
        if self._place is not None:
            logits = logits[..., self._place]
        return F.pad(logits, (0, self.size - self.codes))


def in_order(ids: Mapping[int, int], count: int) -> list[int]:
    """Token ids by code, from a map of codes to ids. Raises ValueError unless the codes are 0..count-1."""
    if sorted(ids) != list(range(count)):
        raise ValueError(f"vocabulary_map: expected an image token for each of the {count} codes of the tokenizer, got "
                         f"{len(ids)}; load the checkpoint's own config")  # fmt: skip
    return [ids[code] for code in range(count)]
