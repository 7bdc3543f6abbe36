"""Targets on several devices or in several processes. accelerate's hooks move a module's inputs and weights to a device
and leave its outputs there; the embeddings and the head of such a target move them back to the request's device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn


def group_of(model: nn.Module) -> Any:
    """Return the processes among which transformers has split a model's layers (`tp_plan`); None without a split."""
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None or (getattr(model, "_tp_size", None) or 1) < 2:
        return None
    return mesh.get_group() if mesh.ndim == 1 else mesh.get_group("tp")


def agreed(group: Any, number: int) -> int:
    """Return the number of the group's first process."""
    if group is None:
        return number
    shared = torch.tensor([number], device=_backend_device(group))
    distributed.broadcast(shared, group=group, group_src=0)
    return int(shared)


def _backend_device(group: Any) -> torch.device:
    return torch.device("cpu") if "gloo" in distributed.get_backend(group) else torch.accelerator.current_accelerator()


def execution_device(module: nn.Module) -> torch.device:
    """Return the device of accelerate's hook, else that of the weights."""
    device = hook_device(module)
    return module.weight.device if device is None else device


def hook_device(module: nn.Module) -> torch.device | None:
    """Return the device to which accelerate moves the weights of a module; None if it does not move them."""
    hook = getattr(module, "_hf_hook", None)
    for part in getattr(hook, "hooks", None) or [hook]:
        device = getattr(part, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return None


def layer_devices(decoder: nn.Module, count: int) -> tuple[torch.device | None, ...]:
    """Return the device of each layer, by the `layer_idx` of its attention; None if it is unknown."""
    devices: dict[int, torch.device] = {}
    for module in decoder.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and index not in devices:
            hooks = (hook_device(part) for part in module.modules())
            weight = next(module.parameters(), None)
            own = None if weight is None else weight.device
            devices[index] = next((device for device in hooks if device is not None), own)
    return tuple(devices.get(index) for index in range(count))


class SameDeviceModule:
    """A module of a single tensor argument whose output is moved to the device of its input."""

    def __init__(self, module: nn.Module):
        self.module = module

    def __call__(self, x: Tensor) -> Tensor:
        return self.module(x).to(x.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def on_input_device(module: nn.Module) -> nn.Module | SameDeviceModule:
    return SameDeviceModule(module) if hasattr(module, "_hf_hook") else module
