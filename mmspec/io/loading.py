"""Weights from files into modules: every check happens before memory is allocated.

`load_module` fills a module from the safetensors file that belongs to its config, `fill_from_state_dict` takes the tensors of
a published state dict, and `unpickle` is the one place that opens pickled checkpoints, for the commands that convert them.
"""

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
_MADE = 20  # tensors a module makes for one that is stored, far more than any does
_MAKERS = {getattr(torch, name) for name in "empty zeros ones full tensor arange eye rand randn".split()}
_FILLS = (torch.Tensor.normal_, nn.init.normal_)


def load_module(make: Callable[[], Module], file: str | Path) -> Module:
    """The module that `make` makes of a config, filled from a safetensors file, float32, in eval mode.

    The module is first sketched without memory and compared with the file's header, so that a config and a file that do not
    belong together cost nothing, whatever sizes the config asks for.
    Raises ValueError, one sentence that names the file, for a file that is damaged, for missing, unknown and misshapen
    tensors, for integers where numbers belong and the other way round, and for a tensor with NaN or Inf.
    """
    file = Path(file)
    with naming(file):
        there = restore_rows(read_shapes(file))
        drawn = sketch(make, len(there), file)
    if wrong := mismatch(drawn.state_dict(), there):
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
    with naming(file):  # a module may look at its own buffers
        module.load_state_dict(state)
    return module.float().eval()


def sketch(make: Callable[[], Module], tensors: int, source: str | Path) -> Module:
    """What `make` makes, on the meta device.

    tensors: how many its file holds; a module that takes far more is given up before it grows.   source: for the error.
    Raises ValueError for sizes that no tensor can have and for more parts than the file can fill.
    """
    try:
        with _Counted(_MADE * (tensors + 50)), torch.device("meta"):
            return make()
    except _TooManyError as error:
        raise ValueError(
            f"{source}: expected a config of about {tensors} tensors, as the file holds, got one of far more; correct it"
        ) from error
    except (RuntimeError, TypeError, ArithmeticError, AssertionError, IndexError, MemoryError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{source}: expected sizes that tensors can have, got others in its config ({reason}); correct it"
        ) from error


def mismatch(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """What keeps the tensors `given` from being those of a module with the tensors `own`, "" where nothing does."""
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
    told = [("no ", missing), ("unknown ", unknown), ("", misfits), ("", kinds)]
    return ", ".join(f"{word}{abbreviated(names)}" for word, names in told if names)


def abbreviated(names: list[str]) -> str:
    """The first few, and how many more there are."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def non_finite(state: Mapping[str, Tensor]) -> list[str]:
    """The tensors that hold NaN or Inf."""
    return [name for name, value in state.items() if not value.is_meta and not bool(value.isfinite().all())]


class _TooManyError(Exception):
    """More tensors than the module of any such file makes."""


class _Counted(TorchFunctionMode):
    """Gives up after so many tensors made: a module list of a thousand million layers never ends otherwise.

    It raises nowhere else: the call may be the one that ends a `no_grad`.
    """

    def __init__(self, most: int):
        super().__init__()
        self.left = most

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.left -= func in _MAKERS
        if self.left < 0 and func in _MAKERS:
            raise _TooManyError
        if func in _FILLS:
            filled = args[0] if args else kwargs["tensor"]
            if filled.is_meta:  # nothing is there to be filled, and torch would import its compiler to find that out
                return filled
        return func(*args, **(kwargs or {}))


def fill_from_state_dict(model: Module, weights: Mapping[str, Tensor], wide: str = "") -> Module:
    """The model with `weights` as its own, without a copy where the dtype is theirs all along, frozen and in eval mode.

    wide: how the names of those end that are never float16.
    Raises ValueError, one sentence, for missing, unknown and misshapen tensors.
    """
    check_weights(model.state_dict(), weights)
    kept = {name for name in weights if wide and name.endswith(wide)}
    dtype = next(value for name, value in weights.items() if name not in kept).dtype
    dtype = dtype if dtype.is_floating_point else torch.float32
    wider = torch.float32 if dtype == torch.float16 else dtype
    cast = {name: value.detach().to(wider if name in kept else dtype) for name, value in weights.items()}
    model.load_state_dict(cast, assign=True)
    return model.eval().requires_grad_(False)


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError where `weights` are not those of a module with the tensors `own`."""
    if wrong := mismatch(own, weights):
        raise ValueError(f"sd: expected every published key in the shapes of the config, and no other, got {wrong}; pass the "
                         "whole state dict and the config it was made with")  # fmt: skip


def unwrap_state(state: Mapping[str, Any], wrappers: Sequence[str]) -> Mapping[str, Tensor]:
    """The tensors of a checkpoint, from under wrappers such as "model" or "ema", also nested.

    Args:
        state: a state dict, raw or wrapped.
        wrappers: the keys that may hold the state dict; where several stand, the first is taken.

    Raises:
        ValueError: when nothing is there, or something that is no tensor.
    """
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
    """A tensor's name without the prefixes that compiling and wrapping leave, in any order and number."""
    while prefix := next((one for one in prefixes if name.startswith(one)), None):
        name = name.removeprefix(prefix)
    return name


def count_modules(weights: Mapping[str, Tensor], pattern: str) -> int:
    """One more than the highest number that a pattern captures in the names of the weights; 0 for none."""
    matches = map(re.compile(pattern).match, weights)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def unpickle(path: Path) -> Mapping[str, Any]:
    """What a .pt or .pth file holds: tensors, plain containers and the parsed command line of its training, no code.

    Raises ValueError for a missing file and one that holds anything else.
    """
    if not path.is_file():
        raise ValueError(f"{path}: expected a checkpoint file, got none there; check the path")
    try:
        # training files also keep the parsed command line, a plain namespace
        with torch.serialization.safe_globals([Namespace]):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception as error:  # a file that is no checkpoint makes the unpickler raise nearly anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{path}: expected a pickled state dict of tensors, got a file that does not open as one ({reason}); "
                         "check the file") from error  # fmt: skip
    if not isinstance(state, Mapping):
        raise ValueError(f"{path}: expected a state dict, got {type(state).__name__}; check the file")
    return state
