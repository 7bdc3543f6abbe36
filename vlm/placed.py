"""Where the parts of a target compute: weights may lie on several devices, be brought from a disk, or be shards of a group's.

accelerate's hooks bring a module's inputs and weights together, and leave its outputs there. What stands between a request and
its target's ends hands them back to where the request is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def execution_device(module: nn.Module) -> torch.device:
    """Where a module computes: accelerate's choice where it moves the weights, else where they are."""
    device = _hooked(module)
    return module.weight.device if device is None else device


def _hooked(module: nn.Module) -> torch.device | None:
    """Where accelerate brings the weights of a module; None where it leaves them."""
    hook = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", None) or [hook]:
        device = getattr(one, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return None


def layer_devices(decoder: nn.Module, count: int) -> tuple[torch.device | None, ...]:
    """Where each of `count` layers computes, by the index that its attention carries; None where none does."""
    found: dict[int, torch.device] = {}
    for module in decoder.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and index not in found:
            hooks = (_hooked(one) for one in module.modules())
            weight = next(module.parameters(), None)
            found[index] = next((one for one in hooks if one is not None), None if weight is None else weight.device)
    return tuple(found.get(index) for index in range(count))


class Returning:
    """A module of one tensor whose outputs come back to where its inputs are; all else is the module's own."""

    def __init__(self, module: nn.Module):
        self.module = module

    def __call__(self, x: Tensor) -> Tensor:
        return self.module(x).to(x.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def returning(module: nn.Module) -> nn.Module | Returning:
    """The module itself where nothing moves what goes through it."""
    return Returning(module) if hasattr(module, "_hf_hook") else module
