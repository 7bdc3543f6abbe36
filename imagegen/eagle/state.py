"""One request of an image drafter: both branches in a cache of its own, and the drafts it proposes."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.drafting.pair_state import PairState
from mmspec.core.drafting.shaped import Shaped
from mmspec.core.pool import SlotPool
from mmspec.imagegen.eagle.prompt import prompt_slots
from mmspec.imagegen.target import ImageTarget


class EagleState(PairState):
    """Keeps the slots of committed pairs (state before value i, embedding of value i) in a cache of its own.

    Features are held with the branches side by side, [B, n, C * H], as the target's evidence holds its states; the layer
    and the head see them as rows [C * B, n, H].
    next_position: index of the value that the next pair embeds.   rotary: a row for every value, and some behind the last.
    Both are None before the prompt is read.
    """

    def __init__(self, drafter: Shaped, target: ImageTarget):
        super().__init__(drafter, target)
        self.copies, self.model = target.copies, target.model
        self.rotary: Tensor | None = None
        self.cache = SlotPool(1, 0, copies=self.copies)
        if target.prompt_hidden is None:
            raise ValueError(f"drafter: expected the prompt's hidden states, got none from {target.model.name}; use a drafter "
                             "that needs none, such as SJD")  # fmt: skip

    @torch.no_grad()
    def prefill(self) -> None:
        """Reads the prompt: all its positions but the last, whose value came with the first pass."""
        target, drafter = self.target, self.drafter
        self.rotary = drafter.rotary(target.geometry, 2 * self.shape.longest + 20)
        self.next_position = torch.zeros(target.batch, dtype=torch.long, device=target.device)
        attend, count = prompt_slots(drafter, self.model, target.prompt_hidden, target.cache.hidden)
        slots = attend.shape[1]
        self.cache.capacity = slots + target.total + 64
        self.remember(attend, attend.new_zeros(1, slots, 2, drafter.layer.config.dim), count)

    def ready(self) -> None:
        if self.next_position is None:
            self.prefill()
        super().ready()

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        self.passes += 1
        drafter = self.drafter
        turned = self._rows(self.rotary[self.next_position[:, None] + ahead])
        fused = drafter.fuse(self._rows(drafter.embed(self.model, value)), self._branches(hidden))
        bias = self.bias(ancestor, back, hidden.dtype)
        return self._sides(drafter.layer(fused, fused, turned, self.cache, bias))

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """float32 [B, n, V], guided and warped as the target's, of predicted states [B, n, C * H].   depth: of the
        children, from 1."""
        index = (self.next_position[:, None] + (depth - 1)).expand(-1, out.shape[1])
        raw = self.model.logits(self._branches(out))
        return self.target.warped(self.target.guided(raw, index), index)

    law = logits

    def _rows(self, tensor: Tensor) -> Tensor:
        """What both branches share, [B, ...], as rows [C * B, ...]; of a single row a view."""
        if self.copies == 1:
            return tensor
        if tensor.shape[0] == 1:
            return tensor.expand(self.copies, *tensor.shape[1:])
        return tensor.repeat(self.copies, *[1] * (tensor.dim() - 1))

    def _branches(self, sides: Tensor) -> Tensor:
        """[B, n, C * H] as rows [C * B, n, H]; of a single value a view."""
        if self.copies == 1:
            return sides
        batch, count, _ = sides.shape
        return sides.reshape(batch, count, self.copies, -1).permute(2, 0, 1, 3).reshape(self.copies * batch, count, -1)

    def _sides(self, rows: Tensor) -> Tensor:
        """Rows [C * B, n, H] with the branches side by side, [B, n, C * H]; of a single value a view."""
        if self.copies == 1:
            return rows
        batch, count = rows.shape[0] // self.copies, rows.shape[1]
        return rows.view(self.copies, batch, count, -1).permute(1, 2, 0, 3).reshape(batch, count, -1)
