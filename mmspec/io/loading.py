"""Weights from files to modules, with all checks before memory is allocated."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from zipfile import is_zipfile

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmspec.io.int8_weights import restore_rows
from mmspec.io.readers import naming, read_shapes, read_tensors

Module = TypeVar("Module", bound=nn.Module)
_SHOWN = 4
_MADE = 20  # most tensors created per stored tensor; real modules create far fewer
_MAKERS = {getattr(torch, name) for name in "empty zeros ones full tensor arange eye rand randn".split()}
_FILLS = (torch.Tensor.normal_, nn.init.normal_)


def load_module(make: Callable[[], Module], file: str | Path) -> Module:
    """Fill the module that `make` constructs from a safetensors file, in float32 and eval mode. The module is first
    made without memory and compared with the file's header: a mismatch costs no memory, whatever the config's sizes."""
    file = Path(file)
    with naming(file):
        shapes = restore_rows(read_shapes(file))
        empty = sketch(make, len(shapes), file)
    if wrong := mismatch(empty.state_dict(), shapes):
        raise ValueError(
            f"{file}: expected the weights of its config, got {wrong}; use the files that were saved together"
        )
    stored = restore_rows(read_tensors(file))
    state = {name: value.float() if value.is_floating_point() else value for name, value in stored.items()}
    if named := non_finite(state):
        raise ValueError(
            f"{file}: expected finite weights, got NaN or Inf in {abbreviated(named)}; save or fetch it again"
        )
    module = make()
    with naming(file):  # a module may check its own buffers
        module.load_state_dict(state)
    return module.float().eval()


def sketch(make: Callable[[], Module], tensors: int, source: str | Path) -> Module:
    """Construct a module on the meta device. A module with far more than the `tensors` of its file is refused early."""
    try:
        with _Counted(_MADE * (tensors + 50)), torch.device("meta"):
            return make()
    except _TooManyError as error:
        raise ValueError(
            f"{source}: expected a config of about {tensors} tensors, the number in its file, got far more; correct it"
        ) from error
    except (RuntimeError, TypeError, ArithmeticError, AssertionError, IndexError, MemoryError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{source}: expected a config with valid tensor sizes, got others ({reason}); correct it"
        ) from error


def mismatch(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Return the difference between given tensors and those of a module; "" where they match."""
    missing, unknown = [name for name in own if name not in given], [name for name in given if name not in own]
    misfits = [
        f"{name} of shape {tuple(value.shape)} instead of {tuple(own[name].shape)}"
        for name, value in given.items()
        if name in own and value.shape != own[name].shape
    ]
    kinds = [
        f"{name} in {value.dtype} instead of {own[name].dtype}"
        for name, value in given.items()
        if name in own and value.is_floating_point() != own[name].is_floating_point()
    ]
    differences = [("no ", missing), ("unknown ", unknown), ("", misfits), ("", kinds)]
    return ", ".join(f"{word}{abbreviated(names)}" for word, names in differences if names)


def abbreviated(names: list[str]) -> str:
    """Return the first few names and the number of the others."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def non_finite(state: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors with NaN or Inf."""
    return [name for name, value in state.items() if not value.is_meta and not bool(value.isfinite().all())]


class _TooManyError(Exception):
    """A module creates more tensors than its file can fill."""


class _Counted(TorchFunctionMode):
    """Stop the construction of a module after a number of tensors, since a list of 10^9 layers would never end. It
    raises only in functions that create tensors: other calls may be the exit of a `no_grad`."""

    def __init__(self, most: int):
        super().__init__()
        self.left = most

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.left -= func in _MAKERS
        if self.left < 0 and func in _MAKERS:
            raise _TooManyError
        if func in _FILLS:
            filled = args[0] if args else kwargs["tensor"]
            if filled.is_meta:  # nothing to fill, and torch would import its compiler
                return filled
        return func(*args, **(kwargs or {}))


def fill_from_state_dict(model: Module, weights: Mapping[str, Tensor]) -> Module:
    """Assign a state dict to a model, without a copy where all weights have the same dtype; return it frozen and in
    eval mode."""
    check_weights(model.state_dict(), weights)
    dtype = next(iter(weights.values())).dtype
    dtype = dtype if dtype.is_floating_point else torch.float32
    model.load_state_dict({name: value.detach().to(dtype) for name, value in weights.items()}, assign=True)
    return model.eval().requires_grad_(False)


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Refuse `weights` that do not belong to a module with the tensors `own`."""
    if wrong := mismatch(own, weights):
        raise ValueError(
            f"sd: expected every published key in the shapes of the config, and no other, got {wrong}; pass the "
            "whole state dict and the config it was made with"
        )


def unwrap_state(state: Mapping[str, Any], wrappers: Sequence[str]) -> Mapping[str, Tensor]:
    """Return the tensors under wrappers such as "model" or "ema", in order of preference, which may be nested."""
    while wrapper := next((name for name in wrappers if isinstance(state.get(name), Mapping)), None):
        state = state[wrapper]
    strange = sorted(str(name) for name, value in state.items() if not isinstance(value, Tensor))
    if strange or not state:
        raise ValueError(
            f"sd: expected tensors, got {f'others in {strange[:4]}' if strange else 'nothing'}; pass the state dict itself or "
            f"a mapping that holds it under one of {', '.join(wrappers)}"
        )
    return state


def without_prefixes(name: str, prefixes: Sequence[str]) -> str:
    """Return a tensor's name without the prefixes of compilers and wrappers, in any order and number."""
    while prefix := next((known for known in prefixes if name.startswith(known)), None):
        name = name.removeprefix(prefix)
    return name


def count_modules(weights: Mapping[str, Tensor], pattern: str) -> int:
    """Return the highest number that a pattern captures in the names, plus 1; 0 without a match."""
    matches = map(re.compile(pattern).match, weights)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def unpickle(path: Path) -> Mapping[str, Any]:
    """Load a .pt or .pth file of tensors, plain containers and the command line of its training; no code is run. It
    alone opens pickles, for the commands that convert them."""
    if not path.is_file():
        raise ValueError(f"{path}: expected a checkpoint file, got none there; check the path")
    try:
        # training files also hold the parsed command line, a plain namespace
        with torch.serialization.safe_globals([Namespace]):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception as error:  # the unpickler raises errors of many classes over other files
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path}: expected a pickled state dict of tensors, got a file that cannot be read as such "
            f"({reason}); check the file"
        ) from error
    if not isinstance(state, Mapping):
        raise ValueError(f"{path}: expected a state dict, got {type(state).__name__}; check the file")
    return state
