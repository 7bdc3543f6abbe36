"""A head over part of the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ReducedHead(nn.Module):
    """Scores `size` of `vocab` tokens.

    weight: [size, width].   d2t: int64 [size], what is added to a row's number to get its token's id.   t2d: bool [vocab],
    the tokens it has a row for. Both buffers are as in EAGLE-3's files: absent where no token is left out. A new head has
    the first `size` tokens until `choose` says which.
    """

    def __init__(self, width: int, vocab: int, size: int):
        super().__init__()
        self.vocab, self.size = vocab, size
        self.weight = nn.Linear(width, size, bias=False).weight
        if size == vocab:
            return
        self.register_buffer("d2t", torch.zeros(size, dtype=torch.long))
        self.register_buffer("t2d", torch.arange(vocab) < size)
        self.register_buffer("ids", torch.arange(size), persistent=False)
        self.register_load_state_dict_post_hook(_find_ids)

    @property
    def reduced(self) -> bool:
        """Whether tokens are left out."""
        return self.size < self.vocab

    @torch.no_grad()
    def choose(self, ids: Sequence[int]) -> None:
        """Row i scores token ids[i] from now on.   Raises ValueError, see `checked`."""
        self.ids.copy_(checked(ids, self.vocab, self.size))
        self.d2t.copy_(self.ids - torch.arange(self.size, device=self.ids.device))
        self.t2d.zero_().index_fill_(0, self.ids, True)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [..., size] of [..., width]."""
        return F.linear(x, self.weight).float()

    def spread(self, scores: Tensor) -> Tensor:
        """Scores [..., size] at their tokens' places in [..., vocab], minus infinity elsewhere."""
        if not self.reduced:
            return scores
        return scores.new_full((*scores.shape[:-1], self.vocab), -torch.inf).index_copy_(-1, self.ids, scores)


def checked(ids: Sequence[int] | Tensor, vocab: int, size: int) -> Tensor:
    """The ids as int64 [size]; raises ValueError unless they rise, every one once, within the vocabulary."""
    ids = ids if isinstance(ids, Tensor) else torch.tensor(ids, dtype=torch.long)
    if len(ids) != size or size < 1:
        raise ValueError(f"ids: expected {size} tokens, at least one, got {len(ids)}")
    if bool((ids[1:] <= ids[:-1]).any()) or not 0 <= int(ids[0]) <= int(ids[-1]) < vocab:
        raise ValueError(f"ids: expected rising ids from 0 to {vocab - 1}, each once, got {ids.tolist()[:8]}, ...")
    return ids


def _find_ids(head: ReducedHead, keys: object) -> None:
    found = head.d2t + torch.arange(head.size, device=head.d2t.device)
    head.ids = found if found.is_meta else checked(found, head.vocab, head.size)
