"""The parts of a prompt that drafters read: pairs of a state and the next token, picture spans and packed slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(slots=True)
class PromptView:
    """Pairs shifted by a token: slot j holds the target's state behind token j and the embedding of token j + 1."""

    embeds: Tensor  # float [B, S, H], the merged input embeddings
    hidden: Tensor  # float [B, S, F]
    picture: Tensor  # int64 [B, S], the row's picture that the embedding is of, from 1; 0 for text, empty slots
    real: Tensor | None = None  # bool [B, S], the slots that hold a pair; None for all
    in_prompt: Tensor | None = None  # bool [B, S], the pairs within the prompt; None for all
    shown: bool = False  # whether earlier turns have pictures
    context: Tensor | None = None  # float [B, M], of the text before the view's first picture
    place: Tensor | None = None  # int64 [B, S] or [A, B, S], the target's positions of tokens 1..S; None if unknown

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
        """Return the pairs of a prompt, in training with the answer behind it: ids int64 [B, P], embeddings [B, P, H]
        and states [B, P, F]. `padding` and `answer` are bool [B, P], None for none. `tokens_per_image` counts a
        picture's placeholders, None where they vary."""
        picture = picture_numbers(ids, placeholders, tokens_per_image)[:, 1:]
        # left padding ends where a token follows; right padding hides the token that the pair would predict from
        real = None if padding is None else ~(padding[:, :-1] | padding[:, 1:])
        if real is not None:  # a picture right behind the padding loses its first row, like a picture at the start
            picture = picture * real
        in_prompt = None if answer is None else answer[:, 1:].cumsum(1) == 0
        return cls(embeds[:, 1:], hidden[:, :-1], picture, real, in_prompt)

    @property
    def position(self) -> Tensor:
        """The position of each pair among its row's pairs, int64 [B, S]."""
        if self.real is not None:
            return (self.real.cumsum(1) - 1).clamp(min=0)
        return torch.arange(self.picture.shape[1], device=self.picture.device).expand_as(self.picture)

    def embeds_of(self, slots: PromptSlots, first: int) -> Tensor:
        """Return the embeddings [B, R - first, H] of the pairs in slots first.. of R; empty slots hold any pair's."""
        return _gather_rows(self.embeds, slots.origin[:, first:].clamp(min=0))

    @property
    def last_picture(self) -> Tensor:
        """The number of the last picture at or before each slot, int64 [B, S]; 0 before the first picture."""
        return self.picture.cummax(1).values


def picture_numbers(ids: Tensor, placeholders: Iterable[int], tokens_per_image: int | None = None) -> Tensor:
    """Return the number of each token's picture, from 1 per row and 0 for text; int64 [B, P]. A picture is a run of
    placeholders; a run longer than `tokens_per_image`, where this is given, is several."""
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
class PictureSpans:
    """The pictures of a batch as contiguous runs of slots, int64 [K] each."""

    row: Tensor
    number: Tensor  # in the row
    first: Tensor  # the first slot
    length: Tensor  # in slots
    longest: int

    @classmethod
    def of(cls, picture: Tensor) -> PictureSpans | None:
        """Return the runs of `PromptView.picture`; None where a batch has no pictures."""
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
        """The places that a picture fills, among the `longest` places, bool [K, N]."""
        return torch.arange(self.longest, device=self.row.device) < self.length[:, None]

    def gather(self, rows: Tensor) -> Tensor:
        """Return the pictures' rows of [B, S, H] as [K, N, H]; places beyond a picture's length hold other rows."""
        place = self.first[:, None] + torch.arange(self.longest, device=rows.device)
        return rows[self.row[:, None], place.clamp(max=rows.shape[1] - 1)]

    def slots(self, count: int | Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slots of every picture's last `count` (int or int64 [K]) places. They are the row int64 [K, 1],
        the slot int64 [K, width] and the used columns, bool [K, width]."""
        column = torch.arange(width, device=self.row.device)
        count = torch.as_tensor(count, device=self.row.device).expand_as(self.length)
        used = (column < count[:, None]) & (count <= self.length)[:, None]
        slot = (self.first + self.length - count)[:, None] + column
        return self.row[:, None], slot.clamp(min=0), used


@dataclass(slots=True)
class PromptSlots:
    """The packed slots of a prompt: row b's first `count[b]` slots are in use, in order."""

    attend: Tensor  # float [B, R, A], the input of queries, keys and values
    carry: Tensor  # float [B, R, H], the residual
    position: Tensor  # int64 [B, R]
    count: Tensor  # int64 [B]
    next_position: Tensor  # int64 [B], of the slot that follows
    origin: Tensor  # int64 [B, R], the pair in the PromptView; -1 for compressed pictures and unused slots
    context: Tensor | None = None  # float [B, R, M], for `fuse`
    last_context: Tensor | None = None  # float [B, M], of the next slot
    place: Tensor | None = None  # int64 [B, R], as `origin`, but only unused slots are -1

    def of_pictures(self, picture: Tensor) -> Tensor:
        """Return the slots that come from pictures, whole or compressed, bool [B, R]; `picture` is the PromptView's."""
        return (self.place >= 0) & (picture.gather(1, self.place.clamp(min=0)) > 0)


def pack_slots(
    attend: Tensor,
    carry: Tensor,
    keep: Tensor | None,
    text: Tensor,
    *,
    position: Tensor | None = None,
    context: Tensor | None = None,
    last_context: Tensor | None = None,
) -> PromptSlots:
    """Move the rows in use, `keep`, bool [B, S] or None for all, to the front of each row, see `PromptSlots`. The
    inputs are [B, S, A], [B, S, H], [B, S, M] and [B, M]. `text`, bool [B, S], are rows fused from a pair, as draft
    tokens will be. `position`, int64 [B, S], is that of the rows before packing; the slot that follows then stands
    right behind the last row in use. None numbers the packed rows."""
    batch, count = attend.shape[:2]
    place = torch.arange(count, device=attend.device).expand(batch, -1)
    origin = torch.where(text, place, -1)
    if keep is None or bool(keep.all()):
        at = place if position is None else position
        follows = at[:, -1] + 1 if count else torch.zeros(batch, dtype=torch.long, device=attend.device)
        full = torch.full((batch,), count, device=attend.device)
        return PromptSlots(attend, carry, at, full, follows, origin, context, last_context, place)
    counts = keep.sum(1)
    width = int(counts.max())
    order = (~keep).long().argsort(dim=1, stable=True)[:, :width]
    used = place[:, :width] < counts[:, None]
    packed = (attend, carry) if attend is not carry else (attend,)
    moved = [_gather_rows(rows, order) for rows in packed]
    at = place[:, :width] if position is None else torch.where(used, position.gather(1, order), 0)
    follows = torch.where(used, at, -1).amax(1) + 1 if width else counts
    return PromptSlots(
        attend=moved[0],
        carry=moved[-1],
        position=at,
        count=counts,
        next_position=follows,
        origin=torch.where(used, origin.gather(1, order), -1),
        context=None if context is None else _gather_rows(context, order),
        last_context=last_context,
        place=torch.where(used, order, -1),
    )


def shift_rows(rows: Tensor, steps: int) -> Tensor:
    """Return rows [B, n, H] shifted right by `steps`: row j is row j - steps, zeros before the start."""
    return F.pad(rows, (0, 0, steps, 0))[:, : rows.shape[1]]


def _gather_rows(rows: Tensor, order: Tensor) -> Tensor:
    return rows.gather(1, order[..., None].expand(-1, -1, rows.shape[-1]))
