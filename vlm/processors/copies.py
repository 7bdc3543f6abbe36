"""Copies and snapshots of stateful objects, so that a rejected draft leaves no trace.

A part of an object is copied in the first applicable way:

1. Models, tokenizers, modules, classes and functions are shared.
2. A part with a method `fork` is copied by it (xgrammar's matchers).
3. A part that `copy.deepcopy` supports is copied in the same way.
4. A part that cannot be copied is shared (xgrammar's compiled grammars, locks).

If such a copy gives other results than its original, `ForkedProcessors` can replay: a copy of the object's state before the
request is called with the arguments of every step so far. The proof (`proof.py`) selects the way for a request. A snapshot
describes the state of an object, so that its states at two times can be compared.
"""

from __future__ import annotations

import copy
import pickle
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
        return part if _ATOMS.issuperset(map(type, part)) else kind([copy_of(item, memo) for item in part])
    if kind in (list, set) and _ATOMS.issuperset(map(type, part)):
        return kind(part)
    if kind is set:
        return {copy_of(item, memo) for item in part}
    if kind is list:
        memo[id(part)] = new = []
        new.extend([copy_of(item, memo) for item in part])
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
    """Return whether a class uses Python's default creation and copy, so that its fields are its whole state."""
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
    except Exception:  # a class that cannot be copied may raise anything
        return part


def fields(part: object) -> dict[str, object]:
    """Return the instance attributes of an object, including those in `__slots__`."""
    slots = {name: getattr(part, name) for name in _slots(type(part)) if hasattr(part, name)}
    return slots | getattr(part, "__dict__", {})


@cache
def _slots(kind: type) -> tuple[str, ...]:
    slots = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            is_private = name.startswith("__") and not name.endswith("__")
            slots.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in slots if name not in ("__dict__", "__weakref__"))


class ForkedProcessors:
    """A copy of a list of logits processors at some step of a row, which can be copied further.

    Args:
        processors: the list before its first call; it is copied.
        shared: the processors among them that need no copy.
        replay: whether to copy by repeating every call so far on a copy of the initial list.
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
            scores: float32 [B, V]. Neither tensor is changed.
        """
        if self.replay:
            self.calls.append((ids, scores))
        scores = scores.clone()
        for processor in self.here:
            scores = processor(ids.clone(), scores)
        return scores

    def _copy_of(self, processors: Sequence[Processor]) -> list[Processor]:
        return copy_of(list(processors), {id(processor): processor for processor in self.shared})


MOST = 4096  # limit of visited parts
_OF_C = {"builtins", "itertools", "random", "numpy", "numpy.random._generator"}  # modules of classes without fields
_MOST_NUMBERS = 4096  # largest tensor that is compared by value


def snapshot(root: object) -> dict[str, object]:
    """Return a summary of `root` and each of its parts, by the path to the part.

    Parts are visited in the order of `traverse`, so a counter comes before the entries of a vocabulary.
    """
    return {path: _summary(part) for path, part in traverse(root)}


def traverse(root: object) -> Iterator[tuple[str, object]]:
    """Yield at most `MOST` parts of `root` with their paths, breadth first; parts except numbers and strings only once."""
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
    """The attributes, except weights, of the models inside an object; copies share them, and no draft may change them.

    Args:
        root: the object.
    """

    def __init__(self, root: object):
        models = [part for _, part in traverse(root) if isinstance(part, nn.Module)]
        modules = {id(module): module for model in models for module in model.modules()}
        self.before = [(module, _attributes(module)) for module in modules.values()]

    def restore(self) -> bool:
        """Restore every attribute, and return whether any of them had changed."""
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


def tokens_within(state: Mapping[str, object], vocab: int, most: int) -> list[int]:
    """Return the token ids among the numbers of a snapshot; a processor that waits for a token stores its id.

    Args:
        state: a result of `snapshot`.
        vocab: V, the upper limit of ids.
        most: the largest number of ids to return.
    """
    ids: dict[int, None] = {}
    for summary in state.values():
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
        yield from ((str(n), item) for n, item in enumerate(list(part)[:MOST]))
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
    return (name, _pickled(part)) if type(part).__module__ in _OF_C else (name,)


def _pickled(part: object) -> int | None:
    """Return a hash of the state of an iterator, an array or a generator of random numbers, which has no fields."""
    try:
        return hash(pickle.dumps(part))
    except Exception:  # some iterators cannot be pickled
        return None
