"""The training pass of a block drafter: every slot starts a draft, all of them at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.vlm.drafters.flash.modules import SarHead
from mmspec.vlm.drafters.slots import Slots


def unroll_blocks(
    drafter: object, slots: Slots, embeds: Tensor, first: int, depths: int, reveal: Tensor | None
) -> list[Tensor]:
    """Features [B, m, H] of slots first.. (m of them) at each depth, as drafting computes them.

    Depth d of slot r comes from the draft started at slot r - d; zeros where that is before `first`. The first block of a
    draft is read off its source slot; each later one from a pass over the drafted block before it, in which slots hold
    their predicted features, or their true states where `reveal` says so.
    embeds: float [B, m, H], of slots first...   reveal: bool [B, m].
    """
    head, block = drafter.layer, drafter.block
    table = head.rotary(int(slots.position.max()) + depths + 1, slots.attend.device, slots.attend.dtype)
    count, place = slots.attend.shape[1] - first, torch.arange(slots.attend.shape[1], device=embeds.device)
    query, key, value = head.heads(slots.attend, table[slots.position], count)
    sees = place <= place[first:, None]  # [m, R]
    attended, carry = head.attention(query, key, value, sees), slots.carry[:, first:]
    start, outputs, own, features = slots.position[:, first:], [], None, None
    for begin in range(0, depths, block):
        if begin:
            steps = range(begin - block + 1, begin + 1)
            ahead = torch.stack([_ahead(embeds, t) for t in steps], 2)
            attend, carry = drafter.fuse(ahead, features)
            if reveal is not None:
                told = torch.stack([_ahead(reveal[..., None], t) for t in steps], 2)
                true = torch.stack([_ahead(slots.attend[:, first:], t) for t in steps], 2)
                attend = torch.where(told, true, attend)
                carry = torch.where(told, torch.stack([_ahead(slots.carry[:, first:], t) for t in steps], 2), carry)
            turned = table[start[..., None] + torch.tensor(list(steps), device=start.device)]
            query, k, v = head.heads(attend.flatten(0, 1), turned.flatten(0, 1), 1)
            drafted = tuple(x.unflatten(0, attend.shape[:2]) for x in (k, v))  # [B, m, groups, k, dim] each
            own = drafted if own is None else tuple(torch.cat(pair, 3) for pair in zip(own, drafted, strict=True))
            carry = carry[:, :, -1]
            attended = _over_both(head, query[:, 0].unflatten(0, attend.shape[:2]), key, value, *own, sees)
        features = head.expansion(head.finish(attended, carry), block).unflatten(-1, (block, -1))  # [B, m, k, H]
        outputs += [_back(features[:, :, i], begin + i) for i in range(min(block, depths - begin))]
    return outputs


def _over_both(
    head: SarHead, q: Tensor, key: Tensor, value: Tensor, own_key: Tensor, own_value: Tensor, sees: Tensor
) -> Tensor:
    """Each query [B, m, heads, dim] over the true slots it sees and the drafted ones of its own draft."""
    scale, slots = q.shape[-1] ** -0.5, key.shape[2]
    true = (q.flatten(1, 2)[:, None] @ key.transpose(-1, -2)).unflatten(2, q.shape[1:3])  # [B, groups, m, heads, R]
    true = true.masked_fill(~sees[:, None], -torch.inf)
    drafted = torch.einsum("bmhd,bmgtd->bgmht", q, own_key)
    weight = (torch.cat([true, drafted], -1).float() * scale).softmax(-1).to(value.dtype)
    attended = (weight[..., :slots].flatten(2, 3) @ value).sum(1).unflatten(1, q.shape[1:3])
    return attended + torch.einsum("bgmht,bmgtd->bmhd", weight[..., slots:], own_value)


def _ahead(rows: Tensor, steps: int) -> Tensor:
    """Row j of the result is row j + steps of [B, m, H] (zeros behind the end)."""
    return F.pad(rows, (0, 0, 0, steps))[:, steps:]


def _back(rows: Tensor, steps: int) -> Tensor:
    """Row j of the result is row j - steps of [B, m, H] (zeros before the start)."""
    return F.pad(rows, (0, 0, steps, 0))[:, : rows.shape[1]]
