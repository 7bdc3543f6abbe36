"""Targets whose layers are shared by a group of processes: what one process decides, all have to decide alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn


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
    told = torch.tensor([number], device=_device(group))
    distributed.broadcast(told, group=group, group_src=0)
    return int(told)


def _device(group: Any) -> torch.device:
    """Where the group's backend takes tensors from."""
    return torch.device("cpu") if "gloo" in distributed.get_backend(group) else torch.accelerator.current_accelerator()
