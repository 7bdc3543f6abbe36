"""A second device for tests: tensors that say they lie on it, and that refuse to meet tensors of the CPU, as a GPU's do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

THERE = torch.device("xpu", 5)  # no machine of these tests has it


class Elsewhere(Tensor):
    """Lies on THERE. Numbers (tensors without axes) may come from the CPU, as with other devices."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:
            return THERE
        if func is torch.autograd.grad:  # of leaves on both devices
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        place = destination(func, args, kwargs)
        if place is not None and place != THERE:
            kwargs = {name: kwarg for name, kwarg in kwargs.items() if name != "device"}
            args = tuple(arg for arg in args if not isinstance(arg, str | torch.device))
            with torch._C.DisableTorchFunctionSubclass():
                args = tuple(arg.as_subclass(Tensor) if isinstance(arg, Elsewhere) else arg for arg in args)
                return func(*args, **kwargs) if len(args) > 1 or kwargs else args[0].clone()
        met = [
            leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and not isinstance(leaf, Elsewhere)
        ]
        if place is None and any(one.dim() for one in met):
            raise RuntimeError(
                f"{func.__name__}: expected all tensors on one device, got some on {THERE} and some on the CPU"
            )
        args, kwargs = (
            {n: one for n, one in group.items() if n != "device"} if isinstance(group, dict) else group
            for group in (args, kwargs)
        )
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **kwargs)
        return tree_map_only(Tensor, lambda one: one if isinstance(one, cls) else one.as_subclass(cls), found)


class Doubled(TorchFunctionMode):
    """Inside it tensors can be made on THERE and moved there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == Tensor.to and destination(func, args, kwargs) == THERE:
            kwargs.pop("device", None)
            args = [arg for arg in args if not isinstance(arg, str | torch.device)]
            first, *rest = (arg.as_subclass(Tensor) if isinstance(arg, Elsewhere) else arg for arg in args)
            moved = func(first, *rest, **kwargs) if rest or kwargs else first.clone()
            return moved.as_subclass(Elsewhere)
        if kwargs.get("device") == THERE:
            return func(*args, **kwargs | {"device": "cpu"}).as_subclass(Elsewhere)
        return func(*args, **kwargs)


def destination(func: Any, args: tuple, kwargs: dict) -> torch.device | None:
    """Where `to` and `cpu` bring a tensor; None where they leave it, and for other functions."""
    if func == Tensor.cpu:
        return torch.device("cpu")
    if func != Tensor.to:
        return None
    for one in (*args[1:], kwargs.get("device"), kwargs.get("other")):
        if isinstance(one, Elsewhere):
            return THERE
        if isinstance(one, Tensor):
            return one.device
        if isinstance(one, str | torch.device):
            return torch.device(one)
    return None


def move(module: nn.Module) -> None:
    """Puts a module on THERE: its weights lie there, its inputs are brought, its outputs handed back, as accelerate does."""
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, one in held.items():
                if one is not None:
                    held[name] = one.detach().as_subclass(Elsewhere)

    def bring(_: nn.Module, args: tuple, kwargs: dict) -> tuple:
        return tree_map_only(Tensor, lambda one: one.to(THERE), (args, kwargs))

    def hand_back(_: nn.Module, args: tuple, kwargs: dict, found: Any) -> Any:
        return tree_map_only(Tensor, lambda one: one.to("cpu"), found)

    module.register_forward_pre_hook(bring, with_kwargs=True)
    module.register_forward_hook(hand_back, with_kwargs=True)
