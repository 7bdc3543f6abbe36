"""FLASH's blocks of features: drafted within a request, and unrolled from every slot in training."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, shift_rows
from mmspec.vlm.drafters.flash.head import SarHead


class FlashState(FeatureState):
    """The state of a request, which runs the drafter only at the end of a block. A node passes the block of its source,
    [B, n, k * H], on to its children; depth d reads offset (d - 1) % k of it. At the end of a block, a single pass
    reads all nodes expanded in it, each as the pair of its predicted feature and its token. Tokens of a block are drawn
    independently given the prefix, and the recorded distribution is that of each depth."""

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.expanded: list[tuple[Tensor, Tensor]] = []  # per level of the current block: tokens and own features
        self.scored: tuple[Tensor, Tensor] | None = None  # a chain's current block, and the logits of its offsets

    def catch_up(self, depth: int | None = None) -> None:
        super().catch_up(depth)
        self.root = self.drafter.layer.expansion(self.root, self.drafter.block)

    def feature(self, out: Tensor, depth: int) -> Tensor:
        return self.drafter.offset(out, depth)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """See `FeatureState.logits`; a chain's block passes the head once for all of its offsets."""
        if out.shape[1] != 1:
            return super().logits(out, depth)
        block = self.drafter.block
        if self.scored is None or self.scored[0] is not out:
            features = out.unflatten(-1, (block, -1))
            self.scored = out, self.drafter.logits(features, depth, self.target.parts.head) + self.ruling
        return self.scored[1][:, :, (depth - 1) % block]

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return the blocks [B, n, k * H] that the children of nodes int64 [B, n] are drawn from, see
        `PairState.expand`."""
        if depth == 1:
            self.expanded = []
        self.expanded.append((token, self.feature(hidden, depth)))
        if depth % self.drafter.block:
            return hidden
        return self._next_blocks(ancestor, back + token.shape[1], depth)

    def _next_blocks(self, ancestor: Tensor | None, drafted: int, depth: int) -> Tensor:
        """Run a pass over the block's nodes; `drafted` counts the nodes of the draft with this block."""
        drafter, levels = self.drafter, self.expanded
        self.expanded = []
        sizes = tuple(token.shape[1] for token, _ in levels)
        token, feature = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))
        attend, carry = drafter.fuse(self.target.parts.embed(token), feature, self.context)
        position = self.next_position[:, None] + _node_depths(sizes, depth, str(token.device))
        bias = self.bias(ancestor, drafted - sum(sizes), attend.dtype, sum(sizes))
        self.passes += 1
        # only the last level's outputs are used; the other levels are only attended to
        out = drafter.layer(attend, carry, self.rotary[position], self.cache, bias, sizes[-1])
        self.cache.advance(sum(sizes))
        return drafter.layer.expansion(out, drafter.block)


@lru_cache(maxsize=64)
def _node_depths(sizes: tuple[int, ...], depth: int, device: str) -> Tensor:
    """Return the positions of a block's nodes behind the root's slot; `depth` is that of its last level."""
    first = depth - len(sizes)
    return torch.tensor([first + level for level, count in enumerate(sizes) for _ in range(count)], device=device)


def unroll_blocks(
    drafter: object, slots: PromptSlots, embeds: Tensor, first: int, depths: int, reveal: Tensor | None
) -> list[Tensor]:
    """Return the features of the m slots from `first` on, at each depth, [B, m, H], as drafting computes them. Depth d
    of slot r comes from the draft that started at slot r - d, and is zero where that lies before `first`. The first
    block of a draft is read from its source slot, each later block from a pass over the drafted block before it.
    `embeds` are [B, m, H]; `reveal`, bool [B, m], are drafted slots that hold their true states, None for none."""
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
            ahead = torch.stack([_shift_left(embeds, t) for t in steps], 2)
            attend, carry = drafter.fuse(ahead, features)
            if reveal is not None:
                revealed = torch.stack([_shift_left(reveal[..., None], t) for t in steps], 2)
                true = torch.stack([_shift_left(slots.attend[:, first:], t) for t in steps], 2)
                attend = torch.where(revealed, true, attend)
                carry = torch.where(
                    revealed, torch.stack([_shift_left(slots.carry[:, first:], t) for t in steps], 2), carry
                )
            turned = table[start[..., None] + torch.tensor(list(steps), device=start.device)]
            query, k, v = head.heads(attend.flatten(0, 1), turned.flatten(0, 1), 1)
            drafted = tuple(x.unflatten(0, attend.shape[:2]) for x in (k, v))  # [B, m, groups, k, dim] each
            own = drafted if own is None else tuple(torch.cat(pair, 3) for pair in zip(own, drafted, strict=True))
            carry = carry[:, :, -1]
            attended = _attend_true_and_drafted(
                head, query[:, 0].unflatten(0, attend.shape[:2]), key, value, *own, sees
            )
        features = head.expansion(head.finish(attended, carry), block).unflatten(-1, (block, -1))  # [B, m, k, H]
        outputs += [shift_rows(features[:, :, i], begin + i) for i in range(min(block, depths - begin))]
    return outputs


def _attend_true_and_drafted(
    head: SarHead, q: Tensor, key: Tensor, value: Tensor, own_key: Tensor, own_value: Tensor, sees: Tensor
) -> Tensor:
    """Attend from each query [B, m, heads, dim] to the true slots it sees and the drafted slots of its own draft."""
    scale, slots = q.shape[-1] ** -0.5, key.shape[2]
    true = (q.flatten(1, 2)[:, None] @ key.transpose(-1, -2)).unflatten(2, q.shape[1:3])  # [B, groups, m, heads, R]
    true = true.masked_fill(~sees[:, None], -torch.inf)
    drafted = torch.einsum("bmhd,bmgtd->bgmht", q, own_key)
    weight = (torch.cat([true, drafted], -1).float() * scale).softmax(-1).to(value.dtype)
    attended = (weight[..., :slots].flatten(2, 3) @ value).sum(1).unflatten(1, q.shape[1:3])
    return attended + torch.einsum("bgmht,bmgtd->bmhd", weight[..., slots:], own_value)


def _shift_left(rows: Tensor, steps: int) -> Tensor:
    """Return rows [B, m, H] shifted left by `steps`: row j is row j + steps, zeros behind the end."""
    return F.pad(rows, (0, 0, 0, steps))[:, steps:]
