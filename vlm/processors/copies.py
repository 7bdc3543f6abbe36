"""Copies and snapshots of objects that keep state, so that a draft can be followed and forgotten.

A part of an object is copied in the first of these ways that it has:

1. Models, tokenizers, modules, classes and functions are shared.
2. A part with a method `fork` is copied by it (xgrammar's matchers).
3. A part that `copy.deepcopy` copies is copied alike.
4. A part that refuses to be copied is shared (xgrammar's compiled grammars, locks).

Where such a copy answers otherwise than its original, `ForkedProcessors` has a last way: a copy of the object as it was before
the request is called again with the arguments of every step so far. The proof (`proof.py`) says which of the two serves a
request. Snapshots write down what an object holds, so that two moments of it can be compared.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

Processor = Callable[[Tensor, Tensor], Tensor]

SHARED = (nn.Module, PreTrainedTokenizerBase, Tokenizer, ModuleType, type, FunctionType, BuiltinFunctionType)
ATOMS = (int, float, complex, bool, str, bytes, type(None), type(...), torch.device, torch.dtype)
_ATOMS = frozenset(ATOMS)
_OWN_WAYS = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")


def copy_of(part: object, memo: dict[int, object] | None = None) -> object:
    """Return a copy of `part` that shares no state with it.

    Args:
        part: any object.
        memo: the copies so far by the id of the original, as for `copy.deepcopy`; put a part there to share it.
    """
    memo = {} if memo is None else memo
    if type(part) in _ATOMS:
        return part
    if id(part) in memo:
        return memo[id(part)]
    memo[id(part)] = new = part if isinstance(part, SHARED) else _copied(part, memo)
    return new


def _copied(part: object, memo: dict[int, object]) -> object:
    kind = type(part)
    if kind is MethodType:
        return MethodType(part.__func__, copy_of(part.__self__, memo))
    if kind is partial:
        return partial(copy_of(part.func, memo), *copy_of(part.args, memo), **copy_of(part.keywords, memo))
    if kind in (tuple, frozenset):
        return part if _ATOMS.issuperset(map(type, part)) else kind([copy_of(one, memo) for one in part])
    if kind in (list, set) and _ATOMS.issuperset(map(type, part)):
        return kind(part)
    if kind is set:
        return {copy_of(one, memo) for one in part}
    if kind is list:
        memo[id(part)] = new = []
        new.extend([copy_of(one, memo) for one in part])
        return new
    if kind is dict:
        memo[id(part)] = new = {}
        for key, value in part.items():
            new[copy_of(key, memo)] = copy_of(value, memo)
        return new
    if isinstance(part, Tensor):
        return part.detach().clone()
    if isinstance(part, torch.Generator):
        return part.clone_state()
    if callable(getattr(kind, "fork", None)):
        return part.fork()
    return _of_plain_class(part, memo) if _is_plain(kind) else _by_deepcopy(part, memo)


@cache
def _is_plain(kind: type) -> bool:
    """Whether a class leaves it to Python how its objects are made and copied, so that its fields are all there is."""
    own = any(getattr(kind, name, None) is not getattr(object, name, None) for name in _OWN_WAYS)
    return not own and not hasattr(kind, "__deepcopy__") and bool(kind.__dictoffset__ or _slots(kind))


def _of_plain_class(part: object, memo: dict[int, object]) -> object:
    memo[id(part)] = new = object.__new__(type(part))
    for name, value in fields(part).items():
        object.__setattr__(new, name, copy_of(value, memo))
    return new


def _by_deepcopy(part: object, memo: dict[int, object]) -> object:
    try:
        return copy.deepcopy(part, memo)
    except Exception:  # what a class raises that cannot be copied is its own choice
        return part


def fields(part: object) -> dict[str, object]:
    """Return the instance attributes of an object, those in `__slots__` too."""
    slots = {name: getattr(part, name) for name in _slots(type(part)) if hasattr(part, name)}
    return slots | getattr(part, "__dict__", {})


@cache
def _slots(kind: type) -> tuple[str, ...]:
    found = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


class ForkedProcessors:
    """A list of logits processors at some step of a row, of which further copies can be made.

    Args:
        processors: the list before its first call; it is copied.
        shared: the ones among `processors` that need no copy.
        replay: copy by calling the list as it was before its first call with the arguments of every call so far.
    """

    def __init__(self, processors: Sequence[Processor], shared: Sequence[Processor] = (), *, replay: bool = False):
        self.origin, self.shared, self.replay = processors, shared, replay
        self.calls: list[tuple[Tensor, Tensor]] = []
        self.here = self._copy_of(processors)

    def fork(self) -> ForkedProcessors:
        """Return a copy at the same step."""
        new = ForkedProcessors.__new__(ForkedProcessors)
        new.origin, new.shared, new.replay, new.calls = self.origin, self.shared, self.replay, []
        new.here = self._copy_of(self.origin if self.replay else self.here)
        for ids, scores in self.calls:
            new(ids, scores)
        return new

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Return the processed scores of the next step.

        Args:
            ids: int64 [B, L], the rows so far.
            scores: float32 [B, V]; both stay as they are.
        """
        if self.replay:
            self.calls.append((ids, scores))
        scores = scores.clone()
        for processor in self.here:
            scores = processor(ids.clone(), scores)
        return scores

    def _copy_of(self, processors: Sequence[Processor]) -> list[Processor]:
        return copy_of(list(processors), {id(one): one for one in self.shared})


MOST = 4096  # parts that are looked at
_MOST_NUMBERS = 4096  # of a tensor that are compared by value


def snapshot(root: object) -> dict[str, object]:
    """Return what `root` and its parts hold, by the path to each part.

    Parts are visited as by `traverse`, so a counter is seen before the entries of a vocabulary.
    """
    return {path: _summary(part) for path, part in traverse(root)}


def traverse(root: object) -> Iterator[tuple[str, object]]:
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
        models = [part for _, part in traverse(root) if isinstance(part, nn.Module)]
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
