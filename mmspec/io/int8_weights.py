"""Weights in eight bits: matrices as int8 rows, each with a scale, in half the space of float16. Suited to weights that
only drafts depend on: a rounded drafter has a slightly lower acceptance rate, and the output is unchanged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".scale"
_LARGEST = 127


def quantise_rows(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return float tensors of two or more axes as int8 of the same shape, with a float32 scale for each index of the
    first axis. Other float tensors are float16; integers and booleans are unchanged."""
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
    """Return the tensors of `quantise_rows`, also of the meta device, in float32 where they were in eight bits."""
    state = {}
    for name, value in stored.items():
        if name.endswith(SCALE) and _is_quantised(stored, name.removesuffix(SCALE)):
            continue
        if not _is_quantised(stored, name):
            state[name] = value
            continue
        scale = stored[name + SCALE]
        if value.dim() < 2 or scale.shape != value.shape[:1]:
            raise ValueError(
                f"{name}{SCALE}: expected a scale for each of {tuple(value.shape[:1])} rows, got "
                f"{tuple(scale.shape)}; save the weights again"
            )
        state[name] = value.float() * scale.float().view(-1, *[1] * (value.dim() - 1))
    return state


def _is_quantised(stored: Mapping[str, Tensor], name: str) -> bool:
    value, scale = stored.get(name), stored.get(name + SCALE)
    return value is not None and value.dtype == torch.int8 and scale is not None and scale.is_floating_point()
