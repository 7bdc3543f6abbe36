"""Training of an MTP layer: every depth of a draft at every slot, computed as drafting computes it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache


def unrolled(
    decoder: nn.Module, read: Tensor, position: Tensor, first: int, depths: int, fuse: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Normed outputs [B, R - first, H] of slots first.. of R at each depth.

    Depth d of a slot is what a draft that started d slots earlier holds there: it reads the layer's own output of the slot
    before at depth d - 1, and sees the true slots up to d before it and its own drafted ancestors in between
    (training-time test of "EAGLE-3").
    read: [B, R, H], of the true slots.   position: int64 [B, R] or [A, B, R].   fuse: from outputs [B, R - first, H] of the
    slots before, what these slots read.
    """
    count = read.shape[1]
    place = torch.arange(count, device=read.device)
    slot, cache = place[first:], DynamicCache()
    seen, outputs = [place <= place[:, None]], []
    for depth in range(depths):
        if depth:
            read = fuse(F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1])
            # keys so far: the true slots, then the drafted ones of depth 1, 2, ... up to this one
            seen = [place <= slot[:, None] - depth, *(slot == slot[:, None] - (depth - d) for d in range(1, depth + 1))]
        out = decoder(
            inputs_embeds=read,
            position_ids=position[..., -read.shape[1] :],
            attention_mask=torch.cat(seen, -1)[None, None].expand(len(read), -1, -1, -1),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        outputs.append(out if depth else out[:, first:])
    return outputs
