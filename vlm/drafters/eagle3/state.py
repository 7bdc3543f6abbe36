"""The state of a request of EAGLE-3: several layers, their windows, and text embedded by the drafter itself."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView

Biases = list[Tensor | None]


class Eagle3State(FeatureState):
    """The state of FeatureDrafter for drafters whose every pair is a slot, so that committed slots stand at their positions.

    ahead: int64 [1 or B, back], how far the drafted slots in the cache lie behind the next position.
    """

    held: ClassVar[tuple[str, ...]] = FeatureState.held

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.cache = SlotCache(len(drafter.layers), 0)
        self.ahead: Tensor | None = None

    def view(self) -> PromptView:
        """The pairs that are unread, with the drafter's own embeddings of text where it has such."""
        return self.drafter.embedded(super().view(), self.unread()[0])

    def fill(self, slots: PromptSlots) -> None:
        """Write a view's slots behind those in the cache; later layers read the outputs of earlier ones."""
        count = slots.attend.shape[1]
        if len(self.drafter.layers) == 1 or not count:
            super().fill(slots)
            return
        layer = self.drafter.layer.config
        empty = slots.attend.new_zeros(len(slots.attend), layer.groups, 0, layer.dim)
        self.cache.reserve(empty, empty)  # so that it knows its rows
        place = torch.arange(count, device=slots.attend.device)
        seen = (place <= place[:, None])[None]
        bias = self.bias(seen, 0, slots.attend.dtype) if self.cache.width or self._narrow(count) else None
        rotary = self.rotary[self.next_position[:, None] + slots.position]
        self.passes += 1
        self.drafter(slots.attend, slots.carry, rotary, self.cache, self.windowed(bias, place[None], 0))
        self.cache.advance(slots.count.tolist())

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        attend, carry = self.drafter.fuse(self.drafter.embeddings(value, self.target.parts), hidden, self.context)
        self._reach(attend.dtype)
        position = self.next_position[:, None] + ahead
        self.latest = attend, position
        self.passes += 1
        steps = ahead if isinstance(ahead, Tensor) else torch.full((1, value.shape[1]), ahead, device=value.device)
        biases = self.windowed(self.bias(ancestor, back, attend.dtype), steps, back)
        return self.drafter.forward(attend, carry, self.rotary[position], self.cache, biases)

    def windowed(self, bias: Tensor | None, ahead: Tensor, back: int) -> Biases:
        """The attention biases of new slots, one a layer.

        Args:
            bias: [B or 1, 1, n, slots], without windows; None where the slots see all before them.
            ahead: int64 [1 or B, n], how far the new slots lie behind the next position.
            back: The number of drafted slots that are in the cache.
        """
        windows = [layer.config.window for layer in self.drafter.layers]
        if not any(windows):
            return [bias] * len(windows)
        rows = max(len(ahead), 1 if self.ahead is None or not back else len(self.ahead))
        drafted = [] if not back else [self.ahead[:, :back].expand(rows, -1)]
        self.ahead = torch.cat([*drafted, ahead.expand(rows, -1)], 1)
        hidden = {w: self._masked(bias, ahead, back, w) for w in set(windows) if self._narrow(ahead.shape[1], w)}
        return [hidden.get(window, bias) for window in windows]

    def _narrow(self, count: int, window: int | None = None) -> bool:
        """Whether a pass over `count` new slots can reach beyond the window, or beyond that of any layer."""
        windows = [layer.config.window for layer in self.drafter.layers] if window is None else [window]
        return any(w and self.cache.width + count > w for w in windows)

    def _masked(self, bias: Tensor | None, ahead: Tensor, back: int, window: int) -> Tensor:
        """The bias with the keys in front of a window hidden."""
        cache, next_position = self.cache, self.next_position[:, None]
        width = cache.width + ahead.shape[1]
        slot, committed = torch.arange(width, device=next_position.device), cache.length[:, None] - back
        place = (slot - committed).clamp(0, self.ahead.shape[1] - 1)
        later = next_position + self.ahead.expand(len(place), -1).gather(1, place)
        key = torch.where(slot < committed, slot, later)  # [B, slots]
        hides = key[:, None] <= (next_position + ahead)[..., None] - window
        if bias is None:
            bias = self.rotary.new_zeros(1, 1, 1, width)
        return bias.masked_fill(hides[:, None], torch.finfo(bias.dtype).min)
