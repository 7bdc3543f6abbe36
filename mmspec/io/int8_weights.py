"""Weights in eight bits: a matrix as int8 rows, each with a scale, in half the space of float16.

For weights that only drafts depend on: a rounded drafter is accepted a little less often, and the output stays the target's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".scale"
_LARGEST = 127


def quantise_rows(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state dict in eight bits.

    Args:
        state: Float tensors of at least two axes become int8 tensors of the same shape and a scale, float32, for each index
            of their first axis. Other float tensors become float16, tensors of integers and booleans stay.

    Raises:
        ValueError: A tensor has a name that a scale would have.
    """
    stored: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in state:
            raise ValueError(
                f"state: expected no tensor called {name!r} beside {name.removesuffix(SCALE)!r}; rename it"
            )
        if not value.is_floating_point():
            stored[name] = value
        elif value.dim() < 2:
            stored[name] = value.half()
        else:
            rows = value.float().flatten(1)
            scale = (rows.abs().amax(1) / _LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
            stored[name] = (rows / scale[:, None]).round().to(torch.int8).view(value.shape)
            stored[name + SCALE] = scale
    return stored


def restore_rows(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that `quantise_rows` stored, float32 where they were in eight bits; others as they are.

    Args:
        stored: Tensors, also on the meta device.

    Raises:
        ValueError: A scale does not fit its tensor.
    """
    state = {}
    for name, value in stored.items():
        if name.endswith(SCALE) and _is_quantised(stored, name.removesuffix(SCALE)):
            continue
        if not _is_quantised(stored, name):
            state[name] = value
            continue
        scale = stored[name + SCALE]
        if value.dim() < 2 or scale.shape != value.shape[:1]:
            raise ValueError(f"{name}{SCALE}: expected a scale for each of {tuple(value.shape[:1])} rows, got "
                             f"{tuple(scale.shape)}; save the weights again")  # fmt: skip
        state[name] = value.float() * scale.float().view(-1, *[1] * (value.dim() - 1))
    return state


def _is_quantised(stored: Mapping[str, Tensor], name: str) -> bool:
    value, scale = stored.get(name), stored.get(name + SCALE)
    return value is not None and value.dtype == torch.int8 and scale is not None and scale.is_floating_point()
