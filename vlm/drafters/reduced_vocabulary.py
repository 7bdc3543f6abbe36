"""The reduced vocabulary of a drafter: its tokens, and the head that scores them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from mmspec.kernels.small_linear import small_linear


class ReducedHead(nn.Module):
    """A head that scores `size` of `vocab` tokens, the first `size` until `choose` selects others. A tied head scores
    with rows that `tie` copies from the target's; they are neither trained nor saved. `weight` is [size, width], None
    before `tie`. `d2t` int64 [size], a row's token less the row's number, is as in EAGLE-3's files, and `t2d` bool
    [vocab] tells the tokens with a row. Neither exists where the head scores all tokens."""

    def __init__(self, width: int, vocab: int, size: int, tied: bool = False):
        super().__init__()
        self.vocab, self.size, self.tied = vocab, size, tied
        if tied:
            self.register_buffer("weight", None, persistent=False)
        else:
            self.weight = nn.Linear(width, size, bias=False).weight
        if size == vocab:
            return
        self.register_buffer("d2t", torch.zeros(size, dtype=torch.long))
        self.register_buffer("t2d", torch.arange(vocab) < size)
        self.register_buffer("ids", torch.arange(size), persistent=False)
        self.register_load_state_dict_post_hook(_restore_ids)

    @property
    def reduced(self) -> bool:
        return self.size < self.vocab

    @property
    def tokens(self) -> Tensor:
        """The token of every row, int64 [size]."""
        if self.reduced:
            return self.ids
        return torch.arange(self.vocab, device=None if self.weight is None else self.weight.device)

    @torch.no_grad()
    def tie(self, rows: Tensor) -> None:
        """Copy the rows of the target's head [vocab, width] into a tied head."""
        self.weight = self.rows_of(rows)

    def rows_of(self, rows: Tensor) -> Tensor:
        """Return its tokens' rows [size, width] of the target's head [vocab, width]; meta rows on the meta device."""
        tokens = self.tokens
        return rows.to(tokens.device)[tokens] if tokens.is_meta else rows[tokens.to(rows.device)]

    @torch.no_grad()
    def choose(self, ids: Sequence[int]) -> None:
        self.ids.copy_(check_token_ids(ids, self.vocab, self.size))
        self.d2t.copy_(self.ids - torch.arange(self.size, device=self.ids.device))
        self.t2d.zero_().index_fill_(0, self.ids, True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the float32 scores [..., size] of rows [..., width]."""
        if self.weight is None:
            raise ValueError(
                "target: expected the model whose head this drafter shares, got none; load it with `target`"
            )
        return small_linear(x, self.weight).float()

    def spread(self, scores: Tensor) -> Tensor:
        """Return scores [..., size] at their tokens' places in [..., vocab], and minus infinity elsewhere."""
        if not self.reduced:
            return scores
        return scores.new_full((*scores.shape[:-1], self.vocab), -torch.inf).index_copy_(-1, self.ids, scores)

    def column(self, token: Tensor) -> Tensor:
        """Return the columns of tokens int64 among the scores; `size` for tokens that are left out."""
        place = torch.searchsorted(self.ids, token.contiguous()).clamp(max=self.size - 1)
        return torch.where(self.ids[place] == token, place, self.size)


def check_token_ids(ids: Sequence[int] | Tensor, vocab: int, size: int) -> Tensor:
    """Return rising ids as int64 [size]."""
    ids = ids if isinstance(ids, Tensor) else torch.tensor(ids, dtype=torch.long)
    if len(ids) != size or size < 1:
        raise ValueError(f"ids: expected {size} tokens, and at least 1, got {len(ids)}")
    if bool((ids[1:] <= ids[:-1]).any()) or not 0 <= int(ids[0]) <= int(ids[-1]) < vocab:
        raise ValueError(f"ids: expected rising ids from 0 to {vocab - 1}, each once, got {ids.tolist()[:8]}, ...")
    return ids


def _restore_ids(head: ReducedHead, keys: object) -> None:
    ids = head.d2t + torch.arange(head.size, device=head.d2t.device)
    head.ids = ids if ids.is_meta else check_token_ids(ids, head.vocab, head.size)


def reduced_vocabulary(
    answers: Iterable[Sequence[int]],
    vocab_size: int,
    most: int,  # fewer where `never` leaves fewer
    always: Iterable[int] = (),  # tokens to keep, such as the end token
    never: Iterable[int] = (),  # tokens to leave out, such as image placeholders
) -> tuple[int, ...]:
    """Return rising ids of the most frequent tokens of answers, which are about pictures where the target sees pictures
    ("EAGLE-3"). Of equally frequent tokens the smaller id comes first, since tokenizers number their merges by
    frequency. Tokens that no answer holds fill the rest in the same order. Other tokens are never drafted."""
    counts = Counter(token for answer in answers for token in answer)
    never, always = set(never), set(always)
    wrong = sorted(token for token in counts.keys() | always if not 0 <= token < vocab_size)
    if wrong:
        raise ValueError(f"answers: expected token ids from 0 to {vocab_size - 1}, got {wrong[:8]}")
    if always & never:
        raise ValueError(f"always: expected no token that `never` holds too, got {sorted(always & never)}")
    if not 0 < max(len(always), 1) <= most:
        raise ValueError(f"most: expected at least 1 and as many as `always` holds, got {most} for {len(always)}")
    ranked = sorted(set(range(vocab_size)) - never - always, key=lambda token: (-counts[token], token))
    ids = tuple(sorted(always | set(ranked[: most - len(always)])))
    if not ids:
        raise ValueError("answers: expected at least one token to keep, got none")
    return ids


def vocabulary_share(ids: Iterable[int], answers: Iterable[Sequence[int]]) -> float:
    """Return the share of the answers' tokens that lie in `ids`; 0 where there are no tokens."""
    counts = Counter(token for answer in answers for token in answer)
    return sum(counts[i] for i in ids) / max(counts.total(), 1)
