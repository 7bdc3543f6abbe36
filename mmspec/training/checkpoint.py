from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.io.files import replacing
from mmspec.io.loading import mismatch
from mmspec.io.readers import open_tensors, read_shapes
from mmspec.training.muon import Muon


def save_state(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write parameters, stored buffers, moments and the completed steps to one safetensors file, atomically."""
    tensors = {f"model.{name}": value.detach().cpu().contiguous() for name, value in _saved_tensors(module)}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"optim.{index}.{key}"] = torch.as_tensor(value).cpu().contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        save_file(tensors, partial, metadata={"step": str(step)})


def load_state(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Restore `save_state`, without moments if `optimizer` is None; return the next step. Errors leave all unchanged."""
    own, shapes = _saved_tensors(module), read_shapes(path)
    stored = {name.removeprefix("model."): value for name, value in shapes.items() if name.startswith("model.")}
    if wrong := mismatch(dict(own), stored):
        raise ValueError(
            f"{path}: expected the state of this module, got a state with {wrong}; train with the settings "
            "it was written with, or start over"
        )
    moments = _moments(path, list(shapes))
    _check_moments(path, moments, optimizer)
    with open_tensors(path) as file:
        step = (file.metadata() or {}).get("step", "")
        if not step.isdecimal():
            raise ValueError(f"{path}: expected a training state with its step, got the step {step!r}; start over")
        if optimizer is not None and moments:
            optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        with torch.no_grad():
            for name, value in own:
                value.copy_(file.get_tensor(f"model.{name}"))
    return int(step)


def _moments(path: Path, names: list[str]) -> dict[int, dict[str, Tensor]]:
    """Return the optimizer state of each parameter, by the parameter's number."""
    moments: dict[int, dict[str, Tensor]] = {}
    with open_tensors(path) as file:
        for name in names:
            kind, _, rest = name.partition(".")
            number, _, field = rest.partition(".")
            if kind == "optim" and number.isdecimal():
                moments.setdefault(int(number), {})[field] = file.get_tensor(name)
    return moments


def _check_moments(path: Path, moments: dict[int, dict[str, Tensor]], optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None or not moments:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    hidden = optimizer.matrices if isinstance(optimizer, Muon) else 0
    for number, fields in moments.items():
        if (number < hidden) != ("momentum_buffer" in fields):
            names = ("Muon", "AdamW") if number < hidden else ("AdamW", "Muon")
            raise ValueError(
                f"{path}: expected moments of {names[0]} for parameter {number}, got {names[1]}'s; train with "
                "the settings they were written with, or start over"
            )
        own = parameters[number].shape if number < len(parameters) else None
        for field, value in fields.items():
            if own is None or value.dim() and value.shape != own:  # the step count is a scalar
                raise ValueError(
                    f"{path}: expected moments of shape {own and tuple(own)} for parameter {number}, got "
                    f"{tuple(value.shape)} as {field}; start over"
                )


def _saved_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and stored buffers under their first names; a shared tensor appears once."""
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        tensors.setdefault(id(value), (name, value))
    return list(tensors.values())
