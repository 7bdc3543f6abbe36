"""The loss of transferred states (Hidden Transfer): the frozen target's later layers read them behind its own answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmspec.vlm.architectures import Parts
from mmspec.vlm.hidden_states import record_states
from mmspec.vlm.partial_passes import layers
from mmspec.vlm.training.prompts import PromptObjective, read_text, rows_behind
from mmspec.vlm.training.teacher import VlmTeacherBatch


@dataclass(frozen=True, slots=True)
class TransferObjective(PromptObjective):
    """The loss of the target's distributions at transferred states behind random anchors, see `PromptObjective`. Paper:
    "Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration" (arXiv 2404.12022)."""

    def states(self, drafter: nn.Module, parts: Parts, batch: VlmTeacherBatch, anchor: Tensor) -> Tensor:
        """Return the target's states [B, A, K, H] at the states transferred from anchors int64 [B, A]."""
        return transferred_states(parts, batch, anchor, drafter.maps, drafter.config.starts)


def transferred_states(
    parts: Parts, batch: VlmTeacherBatch, anchor: Tensor, maps: Tensor, starts: tuple[int, ...]
) -> Tensor:
    """Return the target's last states at states mapped by `maps` [K, H, H] from anchors int64 [B, A], float [B, A, K,
    H], with gradients for the maps. `starts` are the layers that the states of each map enter."""
    count, order = len(maps), sorted(set(starts))
    position, mask = rows_behind(parts, batch, anchor, count)
    with record_states(parts.decoder, tuple(order)) as seen:
        text = _TextSlots(read_text(parts, batch))
    spots = anchor[..., None].expand(-1, -1, seen.levels.shape[-1])
    middle = seen.levels.gather(1, spots).chunk(len(order), -1)
    rows = middle[0].new_zeros(*anchor.shape, count, maps.shape[-1])
    for start, end, source in zip(order, [*order[1:], parts.layers], middle, strict=True):
        joined = [source @ maps[k].to(source).mT if first == start else rows[:, :, k] for k, first in enumerate(starts)]
        entering = torch.stack(joined, 2)
        rows = layers(parts, entering.flatten(1, 2), start, end, position, text, mask).view_as(rows)
    return parts.decoder.norm(rows)


class _TextSlots:
    """The keys and values of a text, behind which a pass reads its own without storing them."""

    def __init__(self, cache: DynamicCache):
        self.cache = cache

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        stored = self.cache.layers[layer]
        return torch.cat([stored.keys, key], 2), torch.cat([stored.values, value], 2)
