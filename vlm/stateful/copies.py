"""Copies of objects that keep state, so that a draft can be followed and forgotten. The only place that copies processors.

A part of an object is copied in the first of these ways that it has:

1. Models, tokenizers, modules, classes and functions are shared.
2. A part with a method `fork` is copied by it (xgrammar's matchers).
3. A part that `copy.deepcopy` copies is copied alike.
4. A part that refuses to be copied is shared (xgrammar's compiled grammars, locks).

Where such a copy answers otherwise than its original, `Fork` has a last way: a copy of the object as it was before the request
is called again with the arguments of every step so far. The proof (`proof.py`) says which of the two serves a request.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
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


def copied(part: object, memo: dict[int, object] | None = None) -> object:
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
        return MethodType(part.__func__, copied(part.__self__, memo))
    if kind is partial:
        return partial(copied(part.func, memo), *copied(part.args, memo), **copied(part.keywords, memo))
    if kind in (tuple, frozenset):
        return part if _ATOMS.issuperset(map(type, part)) else kind([copied(one, memo) for one in part])
    if kind in (list, set) and _ATOMS.issuperset(map(type, part)):
        return kind(part)
    if kind is set:
        return {copied(one, memo) for one in part}
    if kind is list:
        memo[id(part)] = new = []
        new.extend([copied(one, memo) for one in part])
        return new
    if kind is dict:
        memo[id(part)] = new = {}
        for key, value in part.items():
            new[copied(key, memo)] = copied(value, memo)
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
        object.__setattr__(new, name, copied(value, memo))
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


class Fork:
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

    def fork(self) -> Fork:
        """Return a copy at the same step."""
        new = Fork.__new__(Fork)
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
        return copied(list(processors), {id(one): one for one in self.shared})
