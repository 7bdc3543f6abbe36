"""The state of an EAGLE-3 request: several layers with windows, and text embedded by the drafter itself."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView
from mmspec.vlm.prefill import rotary_positions

Biases = list[Tensor | None]


class Eagle3State(FeatureState):
    """The state of a feature drafter in which every pair is a slot, so committed slots stand at their positions.
    `windows` has an entry per layer, `places`, int64 [B, back], are the positions of the drafted slots in the cache.
    `axes` counts those of the prompt's positions, 0 where slots are counted."""

    held: ClassVar[tuple[str, ...]] = FeatureState.held

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.cache = SlotCache(len(drafter.layers), 0)
        self.windows = tuple(layer.config.window for layer in drafter.layers)
        self.places: Tensor | None = None
        self.axes = len(drafter.layer.config.rope_scaling.get("mrope_section", ()))

    def view(self) -> PromptView:
        view = self.drafter.embedded(super().view(), self.unread()[0])
        if self.axes:
            view.place = self.target.prompt_positions[..., -view.embeds.shape[1] :]
        return view

    def fill(self, slots: PromptSlots) -> None:
        """Write a view's slots behind those in the cache; later layers read the outputs of earlier layers."""
        count = slots.attend.shape[1]
        if len(self.drafter.layers) == 1 or not count:
            super().fill(slots)
            return
        layer = self.drafter.layer.config
        empty = slots.attend.new_zeros(len(slots.attend), layer.groups, 0, layer.dim)
        self.cache.reserve(empty, empty)  # sets the number of rows
        place = torch.arange(count, device=slots.attend.device)
        seen = (place <= place[:, None])[None]
        narrow = any(self._reaches_beyond(window, count) for window in self.windows)
        bias = self.bias(seen, 0, slots.attend.dtype) if self.cache.width or narrow else None
        position = self.next_position[:, None] + slots.position
        self.passes += 1
        biases = self.windowed(bias, position, 0)
        self.drafter(slots.attend, slots.carry, self.turned(slots), self.cache, biases)
        self.cache.advance(slots.count.tolist())

    def read_prompt(self) -> None:
        """See `FeatureState.read_prompt`. With several axes, slots stand at the target's positions, see `Eagle3.read`.
        The axes are equal in text, so one position is enough behind the prompt."""
        if not self.axes:
            return super().read_prompt()
        positions = rotary_positions(self.target.prompt_positions)
        self.highest = int(positions.max()) + 1
        super().read_prompt()
        last = positions[..., -1] if positions.dim() == 2 else positions[..., -1].amax(0)
        self.next_position = last.expand(self.target.batch)

    def turned(self, slots: PromptSlots) -> Tensor:
        return self.drafter.layer.rows_at(self.rotary, slots.position) if self.axes else super().turned(slots)

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        attend, carry = self.drafter.fuse(self.drafter.embeddings(value, self.target.parts), hidden, self.context)
        self._reach(attend.dtype)
        position = self.next_position[:, None] + ahead
        self.latest = attend, position
        self.passes += 1
        biases = self.windowed(self.bias(ancestor, back, attend.dtype), position.expand(-1, value.shape[1]), back)
        return self.drafter.forward(attend, carry, self.rotary[position], self.cache, biases)

    def windowed(self, bias: Tensor | None, position: Tensor, back: int) -> Biases:
        """Return a bias per layer of new slots at `position`, int64 [B, n], behind `back` drafted slots. Without
        windows it is `bias`, [B or 1, 1, n, slots], None where the slots see all slots before them."""
        if not any(self.windows):
            return [bias] * len(self.windows)
        self.places = torch.cat([self.places[:, :back], position], 1) if back else position
        reached = [w for w in set(self.windows) if self._reaches_beyond(w, position.shape[1])]
        hidden = {window: self._masked(bias, position, back, window) for window in reached}
        return [hidden.get(window, bias) for window in self.windows]

    def _reaches_beyond(self, window: int, count: int) -> bool:
        return 0 < window < self.cache.width + count

    def _masked(self, bias: Tensor | None, position: Tensor, back: int, window: int) -> Tensor:
        width = self.cache.width + position.shape[1]
        slot, committed = torch.arange(width, device=position.device), self.cache.length[:, None] - back
        drafted = (slot - committed).clamp(0, self.places.shape[1] - 1)
        key = torch.where(slot < committed, slot, self.places.gather(1, drafted))  # positions, [B, slots]
        hides = key[:, None] <= position[..., None] - window
        if bias is None:
            bias = self.rotary.new_zeros(1, 1, 1, width)
        return bias.masked_fill(hides[:, None], torch.finfo(bias.dtype).min)
