"""All blocks of a training step in a single forward pass: many anchors share a context, and each has its own block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.block_layers import UNLIMITED, within_reach
from mmspec.vlm.drafters.base.trained_drafter import shared_embedding


@dataclass(slots=True)
class AnchoredBlocks:
    """The places of blocks in rows of tokens."""

    ids: Tensor  # int64 [B, T]
    anchor: Tensor  # int64 [B, A], the slots whose tokens are the roots of the blocks
    position: Tensor  # int64 [B, T]
    document: Tensor  # int64 [B, T], negative for padding; a block sees its own document alone
    picture: Tensor | None = None  # int64 [B, T], see `picture_numbers`, of one document; None reads pictures whole

    def without(self, keep: Tensor) -> AnchoredBlocks:
        """Return the same blocks where only the tokens in `keep`, bool [B, T], are context and take a position."""
        position = (keep.cumsum(1) - 1).clamp(min=0)
        return replace(self, position=position, document=torch.where(keep, self.document, -1))


def unroll_anchored_blocks(drafter: BlockDrafter, embed: nn.Module, blocks: AnchoredBlocks, states: Tensor) -> Tensor:
    """Return the normed rows [B, A, block_size, H] as drafting from each anchor computes them, from states [B, T, F] at
    the taps. A block sees itself and the context before its root, whose own states are not available yet."""
    context = drafter.context(states)
    if blocks.picture is not None:
        context, keep = drafter.pooled(context, blocks.document >= 0, blocks.picture)
        blocks = blocks.without(keep)
    batch, count = blocks.anchor.shape
    size = drafter.config.block_size
    ids = drafter.block(blocks.ids.gather(1, blocks.anchor)).flatten(1)
    ahead = torch.arange(size, device=ids.device)
    place = (blocks.position.gather(1, blocks.anchor)[..., None] + ahead).flatten(1)  # [B, A * size]
    longest = int(torch.maximum(place.max(), blocks.position.max())) + 1
    embeds = shared_embedding(embed, ids)
    rotary = drafter.layer.rotary(longest, ids.device, embeds.dtype)
    beside = _ContextCache([layer.context(context, rotary[blocks.position.clamp(min=0)]) for layer in drafter.layers])
    rows = drafter(embeds, rotary[place], beside, _visibility(drafter, blocks, place))
    return rows.view(batch, count, size, -1)


class _ContextCache:
    """Keys and values of the context, used as a cache: written slots are appended for the call and not stored."""

    def __init__(self, context: list[tuple[Tensor, Tensor]]):
        self.context = context

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.context[layer]
        return torch.cat([keys, key], 2), torch.cat([values, value], 2)


def _visibility(drafter: BlockDrafter, blocks: AnchoredBlocks, place: Tensor) -> list[Tensor]:
    """Return, per layer, the slots that the rows of all blocks see, bool [B, 1, A * size, T + A * size]."""
    config, anchor = drafter.config, blocks.anchor
    number = torch.arange(anchor.shape[1], device=place.device).repeat_interleave(config.block_size)
    inside = torch.arange(config.block_size, device=place.device).repeat(anchor.shape[1])
    slot = torch.arange(blocks.ids.shape[1], device=place.device)
    document = blocks.document.gather(1, anchor)[..., None]
    before = (slot < anchor[..., None]) & (blocks.document[:, None] == document) & (document >= 0)  # [B, A, T]
    before, same = before[:, number], number[:, None] == number
    query, root = place[..., None], (place - inside)[..., None]
    kinds: dict[tuple[int, bool], Tensor] = {}
    for reach, causal in zip(config.reach, config.causal, strict=True):
        own = same & (inside[:, None] >= inside) if causal else same
        seen = before, own.expand(len(place), -1, -1)
        if reach != UNLIMITED:
            keys = blocks.position[:, None], place[:, None]
            near = [within_reach(query, key, root, reach, config.reach_from_root) for key in keys]
            seen = seen[0] & near[0], seen[1] & near[1]
        kinds[reach, causal] = torch.cat(seen, -1)[:, None]
    return [kinds[kind] for kind in zip(config.reach, config.causal, strict=True)]
