"""Everything an object carries in its `__dict__`s, its parts' among them, to be compared before and after."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def traces(obj: Any) -> dict[str, Any]:
    """path -> value: names in order, the identity of what is not plain, numbers and the bits of tensors as they are."""
    found: dict[str, Any] = {}
    parts = dict(obj.named_modules()) if isinstance(obj, nn.Module) else {"": obj, **_inside(obj)}
    for path, part in parts.items():
        found[f"{path}: class"] = type(part)
        held = getattr(part, "__dict__", {})
        found[f"{path}: names"] = list(held)
        for name, value in held.items():
            found[f"{path}.{name}"] = _plain(value)
    return found


def _inside(pipe: Any) -> dict[str, Any]:
    """The modules and parts of ours that a pipeline holds, however deep."""
    found, left = {}, [("", pipe)]
    seen = {id(pipe)}
    while left:
        path, part = left.pop()
        held = dict(part.named_children()) if isinstance(part, nn.Module) else {}
        for name, value in (held | getattr(part, "__dict__", {})).items():
            if id(value) in seen or not hasattr(value, "__dict__") or isinstance(value, type):
                continue
            if isinstance(value, nn.Module) or type(value).__module__.startswith("mmspec"):
                seen.add(id(value))
                found[f"{path}.{name}"] = value
                left.append((f"{path}.{name}", value))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.detach().double().sum().item() if value.numel() else 0)
    if isinstance(value, str | int | float | bool | tuple | type(None)):
        return value
    if isinstance(value, dict):
        return [(key, id(one)) for key, one in value.items()]
    return id(value)
