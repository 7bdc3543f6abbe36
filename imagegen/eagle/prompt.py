"""The slots of a prompt: its true states beside the embedding of value 0, without rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.imagegen.model import FeatureModel


def prompt_slots(drafter: object, model: FeatureModel, hidden: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the layer attends from at all prompt positions but the last, whose value the first pass brings: float [R, S, H],
    and int64 [R], how many of a row's slots are in use. Padding is left out.

    hidden: float [R, P, H], the prompt's states, R = C * B.   padding: bool [R, P or more], or None.
    """
    rows, slots = hidden.shape[0], hidden.shape[1] - 1
    hidden = hidden[:, :slots]
    count = torch.full((rows,), slots, device=hidden.device)
    padding = None if padding is None else padding[:, :slots]
    if padding is not None and bool(padding.any()):
        count = slots - padding.sum(1)
        order = padding.long().argsort(dim=1, stable=True)[:, : int(count.max())]
        hidden = hidden.gather(1, order[..., None].expand(-1, -1, hidden.shape[-1]))
    value = torch.zeros(1, 1, dtype=torch.long, device=hidden.device)
    embeds = drafter.embed(model, value).expand(rows, hidden.shape[1], -1)
    return drafter.fuse(embeds, hidden), count
