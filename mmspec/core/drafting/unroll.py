"""The outputs of a drafter's layers at every depth of a draft, in training ("training-time test" of EAGLE-3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Fuse = Callable[[Tensor], tuple[Tensor, Tensor]]


class UnrolledLayer(Protocol):
    """A decoder layer, see `DraftLayer`.   config: its LayerConfig, of which the window is read."""

    config: Any

    def heads(self, attend: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values."""

    def finish(self, carry: Tensor, attended: Tensor) -> Tensor:
        """The layer's output from the residual and the attended values."""


def unroll(
    layers: Sequence[UnrolledLayer], attend: Tensor, carry: Tensor, rotary: Tensor, first: int, depths: int, fuse: Fuse,
    hidden: Tensor | None = None, finish: Callable[[Tensor], Tensor] = lambda out: out,
) -> list[Tensor]:  # fmt: skip
    """The outputs of the last layer of slots first.. at each depth, attending as in drafting.

    A slot at depth d reads the drafter's own output of the slot before it at depth d - 1. In each layer it attends the true
    slots up to d before it, and its own drafted ancestors in between, as far as the layer's window reaches from its position.

    Args:
        layers: The decoder layers, the first of which reads `attend`.
        attend: float [B, R, A], of the true slots.
        carry: float [B, R, H], their residual.
        rotary: At their positions, [B or 1, R, 2, dim].
        first: The first slot whose outputs are wanted.
        depths: The number of depths.
        fuse: From outputs [B, R - first, H] of the slots before, the pair (attend, carry) of these slots.
        hidden: bool [B, R], slots before `first` that nothing sees; None for none.
        finish: From outputs of the last layer, the outputs that are read on.

    Returns:
        float [B, R - first, H] a depth.
    """
    passes = [_LayerPasses(layer) for layer in layers]
    outputs: list[Tensor] = []
    for depth in range(depths):
        turned = rotary
        if depth:
            attend, carry = fuse(F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1])
            turned = rotary[:, first:]
        for number, one in enumerate(passes, 1):
            # later layers read the keys of all true slots, so that earlier ones have to put them all out
            start = first if depth or number == len(passes) else 0
            attend = carry = one(attend, carry, turned, start, depth, hidden)
        outputs.append(finish(carry))
    return outputs


class _LayerPasses:
    """The passes of one layer, with the keys and values of true slots, and of depth 1, 2, ... over the slots `first`.."""

    def __init__(self, layer: UnrolledLayer):
        self.layer = layer
        self.true: tuple[Tensor, Tensor] | None = None
        self.drafted: list[tuple[Tensor, Tensor]] = []

    def __call__(
        self, attend: Tensor, carry: Tensor, rotary: Tensor, start: int, depth: int, hidden: Tensor | None
    ) -> Tensor:
        """Outputs of the slots start.. at the next depth; of true slots `attend` and `carry` hold all, else these."""
        query, key, value = self.layer.heads(attend, rotary)
        repeat = query.shape[1] // key.shape[1]
        pair = _wide(key, repeat), _wide(value, repeat)
        if depth:
            self.drafted.append(pair)
        else:
            self.true, query, carry = pair, query[:, :, start:], carry[:, start:]
        return self.layer.finish(carry, self._attended(query, start, depth, hidden))

    def _attended(self, query: Tensor, start: int, depth: int, hidden: Tensor | None) -> Tensor:
        window, scale = self.layer.config.window, query.shape[-1] ** -0.5
        key, value = self.true
        place = torch.arange(key.shape[2], device=key.device)
        slot = place[start:, None]
        hides = place > slot - depth
        if window:
            hides = hides | (place <= slot - window)
        if hidden is not None:
            hides = hides | hidden[:, None, None]
        scores = (query @ key.transpose(-1, -2) * scale).masked_fill(hides, -torch.inf)
        # depth t + 1 of the draft lies depth - 1 - t slots back
        back = [(depth - 1 - t, pair) for t, pair in enumerate(self.drafted) if not window or depth - 1 - t < window]
        own = [(_back(k, steps), _back(v, steps)) for steps, (k, v) in back]
        diagonal = [(query * k).sum(-1, keepdim=True) * scale for k, _ in own]
        weight = torch.cat([scores, *diagonal], -1).float().softmax(-1).to(value.dtype)
        attended = weight[..., : len(place)] @ value
        for column, (_, v) in enumerate(own, len(place)):
            attended = attended + weight[..., column, None] * v
        return attended


def _wide(x: Tensor, repeat: int) -> Tensor:
    return x if repeat == 1 else x.repeat_interleave(repeat, 1)


def _back(x: Tensor, steps: int) -> Tensor:
    """Row j of the result is row j - steps of x [B, heads, m, dim] (zeros before the start)."""
    return F.pad(x, (0, 0, steps, 0))[:, :, : x.shape[2]]
