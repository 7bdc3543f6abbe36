"""The outputs of a drafter's layers at every depth of a draft, for training ("training-time test" of EAGLE-3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Fuse = Callable[[Tensor], tuple[Tensor, Tensor]]


class UnrolledLayer(Protocol):
    """A decoder layer, see `DraftLayer`."""

    config: Any  # a LayerConfig, of which the window is read

    def heads(self, attend: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values."""

    def finish(self, carry: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output from the residual and the attended values."""


def unroll(
    layers: Sequence[UnrolledLayer],
    attend: Tensor,
    carry: Tensor,
    rotary: Tensor,
    first: int,
    depths: int,
    fuse: Fuse,
    hidden: Tensor | None = None,
    finish: Callable[[Tensor], Tensor] = lambda out: out,
) -> list[Tensor]:
    """Return the outputs of the last layer for the slots from `first` at each depth, float [B, R - first, H]. A slot at
    depth d reads the drafter's output of the previous slot at depth d - 1. In each layer it attends the true slots up
    to d before it, and its own drafted ancestors in between, within the window. The first layer reads `attend` [B, R,
    A] of the true slots with the residual `carry` [B, R, H] and `rotary` [B or 1, R, 2, dim]. `fuse` maps outputs of
    the previous slots to (attend, carry). `hidden` bool [B, R] masks slots before `first`. `finish` maps outputs to
    those returned and read at the next depth."""
    passes = [_LayerPasses(layer) for layer in layers]
    outputs: list[Tensor] = []
    for depth in range(depths):
        turned = rotary
        if depth:
            attend, carry = fuse(F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1])
            turned = rotary[:, first:]
        for number, layer_pass in enumerate(passes, 1):
            # later layers read the keys of all true slots, so earlier layers output all of them
            start = first if depth or number == len(passes) else 0
            attend = carry = layer_pass(attend, carry, turned, start, depth, hidden)
        outputs.append(finish(carry))
    return outputs


class _LayerPasses:
    def __init__(self, layer: UnrolledLayer):
        self.layer = layer
        self.true: tuple[Tensor, Tensor] | None = None
        self.drafted: list[tuple[Tensor, Tensor]] = []

    def __call__(
        self, attend: Tensor, carry: Tensor, rotary: Tensor, start: int, depth: int, hidden: Tensor | None
    ) -> Tensor:
        """Return outputs of the slots from `start` at the next depth; `attend` and `carry` hold all true slots at depth
        0."""
        query, key, value = self.layer.heads(attend, rotary)
        repeat = query.shape[1] // key.shape[1]
        pair = _wide(key, repeat), _wide(value, repeat)
        if depth:
            self.drafted.append(pair)
        else:
            self.true, query, carry = pair, query[:, :, start:], carry[:, start:]
        return self.layer.finish(carry, self._attended(query, start, depth, hidden))

    def _attended(self, query: Tensor, start: int, depth: int, hidden: Tensor | None) -> Tensor:
        window = self.layer.config.window
        key, value = self.true
        place = torch.arange(key.shape[2], device=key.device)
        slot = place[start:, None]
        hides = place > slot - depth
        if window:
            hides = hides | (place <= slot - window)
        if hidden is not None:
            hides = hides | hidden[:, None, None]
        # depth t + 1 of the draft is depth - 1 - t slots back
        back = [(depth - 1 - t, pair) for t, pair in enumerate(self.drafted) if not window or depth - 1 - t < window]
        own = [(_back(k, steps), _back(v, steps)) for steps, (k, v) in back]
        return attend_own_draft(query, key, value, hides, own)


def attend_own_draft(
    query: Tensor, key: Tensor, value: Tensor, hides: Tensor, own: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """Return the values for queries [B, heads, m, dim] that each see true slots [B, heads, R, dim], except `hides` bool
    [.., m, R], and their own draft: row i of `own` [B, heads, m, dim] is seen by slot i alone."""
    scale = query.shape[-1] ** -0.5
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(hides, -torch.inf)
    diagonal = [(query * k).sum(-1, keepdim=True) * scale for k, _ in own]
    weight = torch.cat([scores, *diagonal], -1).float().softmax(-1).to(value.dtype)
    attended = weight[..., : key.shape[2]] @ value
    for column, (_, v) in enumerate(own, key.shape[2]):
        attended = attended + weight[..., column, None] * v
    return attended


def _wide(x: Tensor, repeat: int) -> Tensor:
    return x if repeat == 1 else x.repeat_interleave(repeat, 1)


def _back(x: Tensor, steps: int) -> Tensor:
    return F.pad(x, (0, 0, steps, 0))[:, :, : x.shape[2]]
