"""Training state in one safetensors file: parameters, buffers, optimizer moments and the step."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.core.files import replacing


def save_state(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write what the module's state dict holds, AdamW moments and the step count to one safetensors file, by rename."""
    tensors = {f"model.{name}": value.detach().cpu().contiguous() for name, value in _kept(module)}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"optim.{index}.{key}"] = torch.as_tensor(value).cpu().contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        save_file(tensors, partial, metadata={"step": str(step)})


def load_state(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Restore what `save_state` wrote into `module` (and `optimizer`); returns the step to continue from."""
    moments: dict[int, dict[str, Tensor]] = {}
    with safe_open(path, "pt") as stored, torch.no_grad():
        step = int(stored.metadata()["step"])
        for name, value in _kept(module):
            value.copy_(stored.get_tensor(f"model.{name}"))
        for key in stored.keys():
            if key.startswith("optim."):
                _, index, field = key.split(".")
                moments.setdefault(int(index), {})[field] = stored.get_tensor(key)
    if optimizer is not None and moments:
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return step


def _kept(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and stored buffers under their first names: what is shared between modules comes once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        found.setdefault(id(value), (name, value))
    return list(found.values())
