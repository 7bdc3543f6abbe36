"""The prompt view: what a drafter may read of a prompt, and which of it is pictures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class PromptView:
    """Pairs shifted by one: slot j holds the target's state behind token j and the embedding of token j + 1.

    embeds: float [B, S, H], merged input embeddings of tokens 1..S, vision features in place.
    hidden: float [B, S, F], the target's states behind tokens 0..S-1 (F is H, or 3 H where three levels are read).
    picture: int64 [B, S], which picture of the row the embedding belongs to, counted from 1; 0 for text and no pair.
    real: bool [B, S], slots that hold a pair; None when all do.
    asked: bool [B, S], pairs within the prompt, all that drafting has when it reads one; None when all are.
    shown: whether pictures stand before the view, in a conversation that goes on.   context: float [B, M], what they tell the
        text before the view's own pictures, for drafters that have something of the kind (`Slots.last_context`).
    place: int64 [B, S] or [A, B, S], where the target has tokens 1..S; None where nobody said.
    """

    embeds: Tensor
    hidden: Tensor
    picture: Tensor
    real: Tensor | None = None
    asked: Tensor | None = None
    shown: bool = False
    context: Tensor | None = None
    place: Tensor | None = None

    @classmethod
    def of(
        cls,
        ids: Tensor,
        embeds: Tensor,
        hidden: Tensor,
        placeholders: Iterable[int],
        tokens_per_image: int | None = None,
        padding: Tensor | None = None,
        answer: Tensor | None = None,
    ) -> PromptView:
        """The pairs of a prompt, in training with the answer behind it.

        ids: int64 [B, P].   embeds: [B, P, H].   hidden: [B, P, F].   padding, answer: bool [B, P], None for none.
        """
        picture = pictures(ids, placeholders, tokens_per_image)[:, 1:]
        # left padding ends where a token follows, right padding hides the token the pair would predict from
        real = None if padding is None else ~(padding[:, :-1] | padding[:, 1:])
        if real is not None:  # a picture right behind the padding loses its first row, as one that opens a prompt does
            picture = picture * real
        asked = None if answer is None else answer[:, 1:].cumsum(1) == 0
        return cls(embeds[:, 1:], hidden[:, :-1], picture, real, asked)

    @property
    def position(self) -> Tensor:
        """The place of each pair among its row's pairs, int64 [B, S]."""
        if self.real is not None:
            return (self.real.cumsum(1) - 1).clamp(min=0)
        return torch.arange(self.picture.shape[1], device=self.picture.device).expand_as(self.picture)

    @property
    def last_picture(self) -> Tensor:
        """Which picture came last at or before each slot, int64 [B, S]; 0 before the first."""
        return self.picture.cummax(1).values


def pictures(ids: Tensor, placeholders: Iterable[int], tokens_per_image: int | None = None) -> Tensor:
    """Which picture of its row a token belongs to, counted from 1, and 0 for text; int64 like ids [B, P].

    A picture is a run of placeholders. Where every picture has `tokens_per_image` of them, longer runs are several.
    """
    visual = torch.zeros_like(ids, dtype=torch.bool)
    for placeholder in placeholders:
        visual |= ids == placeholder
    starts = visual.clone()
    starts[:, 1:] &= ~visual[:, :-1]
    if tokens_per_image:
        place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        run = torch.where(starts, place, 0).cummax(1).values
        starts |= visual & ((place - run) % tokens_per_image == 0)
    return starts.long().cumsum(1) * visual


@dataclass(slots=True)
class Spans:
    """The pictures of a batch as contiguous runs of slots.   row, number (in its row), first, length: int64 [K]."""

    row: Tensor
    number: Tensor
    first: Tensor
    length: Tensor
    longest: int

    @classmethod
    def of(cls, picture: Tensor) -> Spans | None:
        """The runs of `PromptView.picture`; None where a batch shows none."""
        begins = picture > 0
        begins[:, 1:] &= picture[:, 1:] != picture[:, :-1]
        row, first = begins.nonzero(as_tuple=True)
        if not len(row):
            return None
        number = picture[row, first]
        length = (picture[row] == number[:, None]).sum(1)
        return cls(row, number, first, length, int(length.max()))

    @property
    def there(self) -> Tensor:
        """Which of the `longest` places a picture fills, bool [K, N]."""
        return torch.arange(self.longest, device=self.row.device) < self.length[:, None]

    def gather(self, rows: Tensor) -> Tensor:
        """The pictures' rows of [B, S, H] as [K, N, H]; places beyond a picture's length hold other rows."""
        place = self.first[:, None] + torch.arange(self.longest, device=rows.device)
        return rows[self.row[:, None], place.clamp(max=rows.shape[1] - 1)]

    def slots(self, count: int | Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where the last `count` (int, or int64 [K]) places of every picture lie: row [K, 1], slot [K, width] and
        which of the `width` columns are used, bool [K, width]; column c is place c of those."""
        column = torch.arange(width, device=self.row.device)
        count = torch.as_tensor(count, device=self.row.device).expand_as(self.length)
        used = (column < count[:, None]) & (count <= self.length)[:, None]
        slot = (self.first + self.length - count)[:, None] + column
        return self.row[:, None], slot.clamp(min=0), used
