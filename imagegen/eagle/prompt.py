"""The slots of a prompt: its true states beside the embedding of value 0, without rotary positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.drafting.layer import DraftLayer
from mmspec.core.pool import SlotPool
from mmspec.imagegen.model import FeatureModel


@dataclass(slots=True)
class PromptSlots:
    """attend: float [R, S, H], row r's first `count[r]` slots in use.   padded: whether any are not."""

    attend: Tensor
    count: Tensor
    padded: bool

    def write(self, layer: DraftLayer, cache: SlotPool) -> int:
        """Writes keys and values to an empty cache and counts them; returns the passes it took.

        A single layer has no use for what it would put out here: later slots only attend the keys and values.
        """
        rows, slots, _ = self.attend.shape
        config = layer.config
        if not slots:
            cache.reserve(*(self.attend.new_zeros(rows, config.groups, 0, config.dim) for _ in range(2)))
            return 0
        layer.remember(self.attend, self.attend.new_zeros(1, slots, 2, config.dim), cache)
        if self.padded:
            cache.lengths, cache.length = self.count.tolist(), self.count  # the branches' prompts may differ in length
        else:
            cache.advance(slots)
        return 1


def prompt_slots(drafter: object, model: FeatureModel, hidden: Tensor, padding: Tensor | None) -> PromptSlots:
    """Slots of all prompt positions but the last, whose value the first pass brings. Padding is left out.

    hidden: float [R, P, H], the prompt's states, R = C * B.   padding: bool [R, P or more], or None.
    """
    rows, slots = hidden.shape[0], hidden.shape[1] - 1
    hidden = hidden[:, :slots]
    count = torch.full((rows,), slots, device=hidden.device)
    padding = None if padding is None else padding[:, :slots]
    padded = padding is not None and bool(padding.any())
    if padded:
        count = slots - padding.sum(1)
        order = padding.long().argsort(dim=1, stable=True)[:, : int(count.max())]
        hidden = hidden.gather(1, order[..., None].expand(-1, -1, hidden.shape[-1]))
    value = torch.zeros(1, 1, dtype=torch.long, device=hidden.device)
    embeds = drafter.embed(model, value).expand(rows, hidden.shape[1], -1)
    return PromptSlots(drafter.fuse(embeds, hidden), count, padded)
