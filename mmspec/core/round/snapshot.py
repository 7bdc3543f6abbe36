from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import torch
from torch import Tensor, nn

SHARED = (nn.Module, ModuleType, type, FunctionType, BuiltinFunctionType)
ATOMS = (int, float, complex, bool, str, bytes, type(None), type(...), torch.device, torch.dtype)

MOST = 4096  # limit of visited parts
_OF_C = {"builtins", "itertools", "random", "numpy", "numpy.random._generator"}  # modules of classes without fields
_MOST_NUMBERS = 4096  # largest tensor that is compared by value


def snapshot(root: object) -> dict[str, object]:
    """Visit parts in the order of `traverse`: a counter comes before the entries of a vocabulary."""
    return {path: _summary(part) for path, part in traverse(root)}


def traverse(root: object) -> Iterator[tuple[str, object]]:
    """Yield at most `MOST` parts with their paths, breadth first; parts except numbers and strings only once."""
    seen, queue, count = {id(root)}, deque([("", root)]), 0
    while queue and count < MOST:
        path, part = queue.popleft()
        count += 1
        yield path, part
        for name, child in _children(part):
            if type(child) in ATOMS:
                count += 1
                yield f"{path}.{name}", child
            elif id(child) not in seen:
                seen.add(id(child))
                queue.append((f"{path}.{name}", child))


def fields(part: object) -> dict[str, object]:
    slots = {name: getattr(part, name) for name in slots_of(type(part)) if hasattr(part, name)}
    return slots | getattr(part, "__dict__", {})


@cache
def slots_of(kind: type) -> tuple[str, ...]:
    slots = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            is_private = name.startswith("__") and not name.endswith("__")
            slots.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in slots if name not in ("__dict__", "__weakref__"))


def _children(part: object) -> Iterator[tuple[str, object]]:
    if isinstance(part, FunctionType):
        cells = part.__closure__ or ()
        yield from ((f"cell{n}", cell.cell_contents) for n, cell in enumerate(cells) if is_full(cell))
        yield from vars(part).items()
    elif isinstance(part, (*SHARED, Tensor)) or _is_tokenizer(type(part)):
        return
    elif isinstance(part, MethodType):
        yield "self", part.__self__
    elif isinstance(part, partial):
        yield from (("func", part.func), ("args", part.args), ("keywords", part.keywords))
    elif isinstance(part, Mapping):
        yield from ((repr(key)[:80], value) for key, value in list(part.items())[:MOST])
    elif isinstance(part, (list, tuple, deque)):
        yield from ((str(n), item) for n, item in enumerate(list(part)[:MOST]))
    elif not isinstance(part, (set, frozenset)):
        yield from fields(part).items()


def is_full(cell: object) -> bool:
    try:
        return bool([cell.cell_contents])
    except ValueError:
        return False


def _summary(part: object) -> tuple:
    name = type(part).__name__
    if type(part) in ATOMS:
        return name, repr(part)
    if isinstance(part, Tensor):
        few = part.numel() <= _MOST_NUMBERS and not part.is_meta
        seen = (tuple(part.flatten().tolist()),) if few else (part.data_ptr(), part._version)
        return ("Tensor", str(part.dtype), tuple(part.shape), str(part.device), *seen)
    if isinstance(part, torch.Generator):
        return name, hash(bytes(part.get_state().tolist()))
    if isinstance(part, (set, frozenset)):
        return name, len(part), tuple(sorted(map(repr, part)))[:MOST]
    if isinstance(part, (list, tuple, deque, Mapping)):
        return name, len(part)
    is_of_c = type(part).__module__ in _OF_C and not callable(part)
    return (name, _reduced(part)) if is_of_c else (name,)


def _reduced(part: object) -> int | None:
    try:
        state = part.bit_generator.state if hasattr(part, "bit_generator") else part.__reduce_ex__(2)
    except TypeError:  # some iterators cannot be reduced
        return None
    return hash(repr(state))


@cache
def _is_tokenizer(kind: type) -> bool:
    names = ("transformers.PreTrainedTokenizerBase", "tokenizers.Tokenizer")
    return any(f"{base.__module__.partition('.')[0]}.{base.__name__}" in names for base in kind.__mro__)
