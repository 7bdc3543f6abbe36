"""What an object holds, written down, so that two moments of it can be compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType

import torch
from torch import Tensor, nn

from mmspec.vlm.stateful.copies import ATOMS, SHARED, fields

MOST = 4096  # parts that are looked at
_MOST_NUMBERS = 4096  # of a tensor that are compared by value


def snapshot(root: object) -> dict[str, object]:
    """Return what `root` and its parts hold, by the path to each part.

    Parts are visited as by `walk`, so a counter is seen before the entries of a vocabulary.
    """
    return {path: _summary(part) for path, part in walk(root)}


def walk(root: object) -> Iterator[tuple[str, object]]:
    """Yield at most `MOST` parts of `root` with the paths to them, breadth first; each part but numbers and strings once."""
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


class ModelAttributes:
    """What the models that an object holds keep beside their weights, which copies share and no draft may change.

    Args:
        root: the object.
    """

    def __init__(self, root: object):
        models = [part for _, part in walk(root) if isinstance(part, nn.Module)]
        modules = {id(module): module for model in models for module in model.modules()}
        self.before = [(module, _attributes(module)) for module in modules.values()]

    def restore(self) -> bool:
        """Put every attribute back, and return whether any had another value."""
        changed = False
        for module, before in self.before:
            now = _attributes(module)
            if now.keys() != before.keys() or any(now[name] is not value for name, value in before.items()):
                changed = True
                for name in now.keys() - before.keys():
                    del module.__dict__[name]
                module.__dict__.update(before)
        return changed


def _attributes(module: nn.Module) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def tokens_within(found: Mapping[str, object], vocab: int, most: int) -> list[int]:
    """Return token ids among the numbers of a snapshot: a processor that waits for a token holds its id.

    Args:
        found: see `snapshot`.
        vocab: V; ids are below it.
        most: how many ids to return.
    """
    ids: dict[int, None] = {}
    for summary in found.values():
        if summary[0] == "int":
            ids[int(summary[1])] = None
        elif summary[0] == "Tensor" and isinstance(summary[-1], tuple) and len(summary[-1]) <= 64:
            ids.update(dict.fromkeys(int(n) for n in summary[-1] if abs(n) < vocab and int(n) == n))
    return [i for i in ids if 0 <= i < vocab][:most]


def _children(part: object) -> Iterator[tuple[str, object]]:
    if isinstance(part, FunctionType):
        cells = part.__closure__ or ()
        yield from ((f"cell{n}", cell.cell_contents) for n, cell in enumerate(cells) if _is_full(cell))
        yield from vars(part).items()
    elif isinstance(part, (*SHARED, Tensor)):
        return
    elif isinstance(part, MethodType):
        yield "self", part.__self__
    elif isinstance(part, partial):
        yield from (("func", part.func), ("args", part.args), ("keywords", part.keywords))
    elif isinstance(part, Mapping):
        yield from ((repr(key)[:80], value) for key, value in list(part.items())[:MOST])
    elif isinstance(part, (list, tuple, deque)):
        yield from ((str(n), one) for n, one in enumerate(list(part)[:MOST]))
    elif not isinstance(part, (set, frozenset)):
        yield from fields(part).items()


def _is_full(cell: object) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _summary(part: object) -> tuple:
    name = type(part).__name__
    if type(part) in ATOMS:
        return name, repr(part)
    if isinstance(part, Tensor):
        few = part.numel() <= _MOST_NUMBERS
        seen = (tuple(part.flatten().tolist()),) if few else (part.data_ptr(), part._version)
        return ("Tensor", str(part.dtype), tuple(part.shape), str(part.device), *seen)
    if isinstance(part, torch.Generator):
        return name, hash(bytes(part.get_state().tolist()))
    if isinstance(part, (set, frozenset)):
        return name, len(part), tuple(sorted(map(repr, part)))[:MOST]
    if isinstance(part, (list, tuple, deque, Mapping)):
        return name, len(part)
    return (name,)
