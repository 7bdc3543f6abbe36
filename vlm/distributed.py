"""Targets on several devices or in several processes: where the layers compute, and how processes agree on a number.

accelerate's hooks bring a module's inputs and weights together, and leave its outputs there. Modules between a request and its
target's ends hand the outputs back to the device of the request.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn


def group_of(model: nn.Module) -> Any:
    """The processes among which transformers has split a model's layers (`tp_plan`); None where one has it whole."""
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None or (getattr(model, "_tp_size", None) or 1) < 2:
        return None
    return mesh.get_group() if mesh.ndim == 1 else mesh.get_group("tp")


def agreed(group: Any, number: int) -> int:
    """The number of the group's first process."""
    if group is None:
        return number
    told = torch.tensor([number], device=_backend_device(group))
    distributed.broadcast(told, group=group, group_src=0)
    return int(told)


def _backend_device(group: Any) -> torch.device:
    """Where the group's backend takes tensors from."""
    return torch.device("cpu") if "gloo" in distributed.get_backend(group) else torch.accelerator.current_accelerator()


def execution_device(module: nn.Module) -> torch.device:
    """Where a module computes: accelerate's choice where it moves the weights, else where they are."""
    device = hook_device(module)
    return module.weight.device if device is None else device


def hook_device(module: nn.Module) -> torch.device | None:
    """The device to which accelerate brings the weights of a module; None where it leaves them."""
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
            hooks = (hook_device(one) for one in module.modules())
            weight = next(module.parameters(), None)
            found[index] = next((one for one in hooks if one is not None), None if weight is None else weight.device)
    return tuple(found.get(index) for index in range(count))


class SameDeviceModule:
    """A module of one tensor whose outputs come back to where its inputs are; all else is the module's own."""

    def __init__(self, module: nn.Module):
        self.module = module

    def __call__(self, x: Tensor) -> Tensor:
        return self.module(x).to(x.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def on_input_device(module: nn.Module) -> nn.Module | SameDeviceModule:
    """The module itself where nothing moves what goes through it."""
    return SameDeviceModule(module) if hasattr(module, "_hf_hook") else module
