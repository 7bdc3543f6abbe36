"""The rows a drafter's layer reads of a prompt, packed without gaps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Slots:
    """Row b's first `count[b]` slots are in use, in order.

    attend: float [B, R, A], what queries, keys and values are projected from.   carry: float [B, R, H], the residual.
    position: int64 [B, R].   next_position: int64 [B], of the slot that follows.
    origin: int64 [B, R], the slot of the PromptView it came from, -1 for compressed pictures and unused slots.
    context: float [B, R, M], what `fuse` was given beside the pair, None where a drafter has nothing of the kind.
    last_context: float [B, M], the context of what follows.
    place: int64 [B, R], the slot of the PromptView it stands in (of its picture, where compressed), -1 for unused slots.
    """

    attend: Tensor
    carry: Tensor
    position: Tensor
    count: Tensor
    next_position: Tensor
    origin: Tensor
    context: Tensor | None = None
    last_context: Tensor | None = None
    place: Tensor | None = None

    def of_pictures(self, picture: Tensor) -> Tensor:
        """Which slots come from pictures, whole or compressed, bool [B, R].   picture: of the PromptView, int64 [B, S]."""
        return (self.place >= 0) & (picture.gather(1, self.place.clamp(min=0)) > 0)


def pack(
    attend: Tensor,
    carry: Tensor,
    keep: Tensor | None,
    text: Tensor,
    *,
    position: Tensor | None = None,
    context: Tensor | None = None,
    last_context: Tensor | None = None,
) -> Slots:
    """Moves the kept rows of [B, S, ...] to the front of each row.

    keep: bool [B, S], None for all.   text: bool [B, S], rows fused from a pair as drafted ones will be.
    position: int64 [B, S], of the rows before packing; None counts the packed rows. Where given, what follows takes
        the position after the last kept row's.
    """
    batch, count = attend.shape[:2]
    place = torch.arange(count, device=attend.device).expand(batch, -1)
    origin = torch.where(text, place, -1)
    if keep is None or bool(keep.all()):
        at = place if position is None else position
        follows = at[:, -1] + 1 if count else torch.zeros(batch, dtype=torch.long, device=attend.device)
        full = torch.full((batch,), count, device=attend.device)
        return Slots(attend, carry, at, full, follows, origin, context, last_context, place)
    counts = keep.sum(1)
    width = int(counts.max())
    order = (~keep).long().argsort(dim=1, stable=True)[:, :width]
    used = place[:, :width] < counts[:, None]
    packed = (attend, carry) if attend is not carry else (attend,)
    moved = [_take(rows, order) for rows in packed]
    at = place[:, :width] if position is None else torch.where(used, position.gather(1, order), 0)
    follows = torch.where(used, at, -1).amax(1) + 1 if width else counts
    return Slots(
        attend=moved[0],
        carry=moved[-1],
        position=at,
        count=counts,
        next_position=follows,
        origin=torch.where(used, origin.gather(1, order), -1),
        context=None if context is None else _take(context, order),
        last_context=last_context,
        place=torch.where(used, order, -1),
    )


def _take(rows: Tensor, order: Tensor) -> Tensor:
    return rows.gather(1, order[..., None].expand(-1, -1, rows.shape[-1]))
