"""Heads that read of a clip, halfway through a block-causal video model, where its objects are, what and heading where.

They are auxiliary and dropped after training: a flow of few large objects is nearly right without the shape that its prompt
names, so that a small model is late to look it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.video.wan.transformer import CausalWan

from ...world.moving import DIRECTIONS, LOOKS
from ..fact_reading import IGNORE

_RARE = 4.0  # how much more a token that holds an object counts where that is asked


class ObjectReader(nn.Module):
    """Of the states [B, S, dim] behind the middle layer of a model with tokens of `patch` latents."""

    def __init__(self, width: int, patch: int):
        super().__init__()
        self.patch = patch
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.look, self.heading = nn.Linear(2 * width, LOOKS), nn.Linear(2 * width, len(DIRECTIONS))
        self.there = nn.Linear(2 * width, 1)

    def loss(self, states: Tensor, looks: Tensor, headings: Tensor) -> tuple[Tensor, float]:
        """Mean cross-entropy of whether a token holds an object, over all, and of look and heading over those that do; and the
        share of these whose look is read right.

        looks, headings: int64 [B, F, h, w], a label a token, as `held` gives them.
        """
        looks, headings = (labels.flatten(1).to(states.device) for labels in (looks, headings))
        here = looks != IGNORE
        hidden = self.mix(F.rms_norm(states.float(), states.shape[-1:]))
        rare = torch.full((), _RARE, device=states.device)
        loss = F.binary_cross_entropy_with_logits(self.there(hidden)[..., 0], here.float(), pos_weight=rare)
        if not here.any():
            return loss, 0.0
        logits = self.look(hidden[here])
        loss = loss + F.cross_entropy(logits, looks[here]) + F.cross_entropy(self.heading(hidden[here]), headings[here])
        return loss, float((logits.argmax(-1) == looks[here]).float().mean())


@contextmanager
def middle_states(model: CausalWan) -> Iterator[list[Tensor]]:
    """Collects what every pass inside leaves behind the middle layer, [B, S, dim] each."""
    seen: list[Tensor] = []
    behind = model.blocks[len(model.blocks) // 2].norm1  # is handed what the layer before has left
    hook = behind.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        hook.remove()


def of_last_passes(seen: Sequence[Tensor], count: int) -> Tensor:
    """The states of the last `count` passes, which are the noisy ones, one behind the other."""
    return torch.cat(list(seen[-count:]), 1)
