"""The vocabulary of block drafters: the target's head, its rows for some tokens, or a head of the drafter's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.block_layers import BlockDrafterConfig
from mmspec.vlm.drafters.base.trained_drafter import LogitTransform, ShapedDrafter
from mmspec.vlm.drafters.reduced_vocabulary import ReducedHead, reduced_vocabulary
from mmspec.vlm.hf_model import unwrapped


class BlockVocabulary(ShapedDrafter):
    """Base of block drafters that scores their rows for the drafter's k tokens, all V or a reduced vocabulary. `head`
    is the drafter's own or tied head, None where the target's head scores all tokens."""

    config: BlockDrafterConfig
    token_rows: tuple[str, ...] = ("head.weight",)  # weights with a row for each token of the vocabulary

    def __init__(self, config: BlockDrafterConfig):
        super().__init__(config)
        size = config.draft_vocab_size
        self.head = ReducedHead(config.hidden_size, config.vocab_size, size, config.tied_head) if size else None
        self._start: tuple[Tensor, ...] = ()

    @property
    def vocabulary(self) -> Tensor | None:
        return self.head.ids if self.head is not None and self.head.reduced else None

    @property
    def width(self) -> int:
        return self.config.draft_vocab_size or self.config.vocab_size

    def unary(self, rows: Tensor, head: nn.Module, after: LogitTransform | None = None) -> Tensor:
        """Return the scores of rows [..., H] alone, float32 [..., k]. `after` is the target's transform of its logits,
        used unless the drafter's own config has a transform."""
        if self.head is not None and not self.head.tied:
            return self.head(rows)
        own = LogitTransform(self.config.output_multiplier, self.config.softcap)
        scores = head(rows).float() if self.head is None else self.head(rows)
        return (after if after is not None and own == LogitTransform() else own)(scores)

    def columns(self, token: Tensor) -> Tensor:
        """Return the columns of tokens int64 among the scores; k for tokens outside the vocabulary."""
        return token if self.vocabulary is None else self.head.column(token)

    @torch.no_grad()
    def start_from(self, parts: Parts) -> Self:
        """Copy the target's rows into an own or tied head; a vocabulary that is chosen later starts from them too."""
        self._start = (parts.head.weight,)  # in a tuple: not a weight of the drafter
        self._fill_head()
        return self

    def _fill_head(self) -> None:
        for rows in self._start if self.head is not None else ():
            if self.head.tied:
                self.head.tie(rows)
            else:
                self.head.weight.copy_(self.head.rows_of(rows))

    @torch.no_grad()
    def with_vocabulary(self, ids: Sequence[int]) -> Self:
        """Return a drafter with these weights for these rising token ids only; a token without a row gets the target's
        (`start_from`), else a new row."""
        size = 0 if len(ids) == self.config.vocab_size else len(ids)
        other = type(self)(replace(self.config, draft_vocab_size=size))
        other.to(device=self.fc.weight.device, dtype=self.fc.weight.dtype).train(self.training)
        other.shapes, other._start = self.shapes, self._start
        if other.vocabulary is not None:
            other.head.choose(ids)
        own = self.state_dict()
        shared = {name: value for name, value in own.items() if name not in self.token_rows}
        other.load_state_dict({k: v for k, v in shared.items() if not k.startswith("head.")}, strict=False)
        other._fill_head()
        tokens, known = other._tokens(), self._tokens()
        for name, value in other.state_dict().items():  # the state dict shares memory with the weights
            if name in self.token_rows and name in own:
                _copy_rows(value, tokens, own[name], known)
        return other.requires_grad_(self.fc.weight.requires_grad)

    def with_answers(
        self, answers: Iterable[Sequence[int]], most: int = 0, always: Iterable[int] = (), never: Iterable[int] = ()
    ) -> Self:
        """Return `with_vocabulary` for the answers' `most` frequent tokens, 0 for the config's draft_vocab_size,
        unchanged if that is 0 too, see `reduced_vocabulary`. `always` are kept and `never` left out, whatever their
        count."""
        most = min(most or self.config.draft_vocab_size, self.config.vocab_size)
        if not most:
            return self
        return self.with_vocabulary(reduced_vocabulary(answers, self.config.vocab_size, most, always, never))

    def share(self, parts: Parts) -> None:
        if self.head is not None and self.head.tied and self.head.weight is None:
            self.head.tie(parts.head.weight)

    def fitted(self, target: nn.Module) -> Self:
        drafter = super().fitted(target)
        drafter.share(take_apart(unwrapped(target)))
        return drafter

    def _tokens(self) -> Tensor:
        if self.vocabulary is not None:
            return self.vocabulary
        return torch.arange(self.config.vocab_size, device=self.fc.weight.device)


def _copy_rows(new: Tensor, tokens: Tensor, old: Tensor, known: Tensor) -> None:
    """Copy to `new`, [k or k + 1, ...], the rows of `old`, [m or m + 1, ...], for tokens that both rising id lists, [k]
    and [m], have; an extra last row stands for all other tokens."""
    row = torch.searchsorted(known, tokens).clamp(max=len(known) - 1)
    both = known[row] == tokens
    new[: len(tokens)][both] = old[row[both]]
    if len(new) > len(tokens) and len(old) > len(known):
        new[-1] = old[-1]
