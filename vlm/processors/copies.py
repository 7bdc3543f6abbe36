"""Copies of stateful objects, so that a rejected draft leaves no trace.

A part of an object is copied in the first applicable way. Models, tokenizers, modules, classes and functions are
shared. A part with a method `fork` is copied by it (xgrammar's matchers), or else by `copy.deepcopy`. A part that
cannot be copied is shared (xgrammar's compiled grammars, locks). If such a copy gives other results, `ForkedProcessors`
can replay: a copy from before the request is called with the arguments of every step so far. The proof (`proof.py`)
selects the way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MethodType

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mmspec.core.round.snapshot import ATOMS, SHARED, fields, slots_of, traverse

Processor = Callable[[Tensor, Tensor], Tensor]

_SHARED = (*SHARED, PreTrainedTokenizerBase, Tokenizer)
_ATOMS = frozenset(ATOMS)
_OWN_WAYS = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")


def copy_of(part: object, memo: dict[int, object] | None = None) -> object:
    """`memo` has the copies so far by the id of the original, as for `copy.deepcopy`; put a part there to share it."""
    memo = {} if memo is None else memo
    if type(part) in _ATOMS:
        return part
    if id(part) in memo:
        return memo[id(part)]
    memo[id(part)] = new = part if isinstance(part, _SHARED) else _copied(part, memo)
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
    return not own and not hasattr(kind, "__deepcopy__") and bool(kind.__dictoffset__ or slots_of(kind))


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


class ForkedProcessors:
    """Logits processors at some step of a row, which can be copied further. Processors in `shared` need no copy.
    `replay` copies by repeating every call so far on a copy of the initial list."""

    def __init__(self, processors: Sequence[Processor], shared: Sequence[Processor] = (), *, replay: bool = False):
        self.origin, self.shared, self.replay = processors, shared, replay
        self.calls: list[tuple[Tensor, Tensor]] = []
        self.here = self._copy_of(processors)

    def fork(self) -> ForkedProcessors:
        new = ForkedProcessors.__new__(ForkedProcessors)
        new.origin, new.shared, new.replay, new.calls = self.origin, self.shared, self.replay, []
        new.here = self._copy_of(self.origin if self.replay else self.here)
        for ids, scores in self.calls:
            new(ids, scores)
        return new

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Return the next step's scores from ids int64 [B, L] and scores float32 [B, V]; neither tensor is changed."""
        if self.replay:
            self.calls.append((ids, scores))
        scores = scores.clone()
        for processor in self.here:
            scores = processor(ids.clone(), scores)
        return scores

    def _copy_of(self, processors: Sequence[Processor]) -> list[Processor]:
        return copy_of(list(processors), {id(processor): processor for processor in self.shared})


class ModelAttributes:
    """The attributes, except weights, of the models inside an object; copies share them, and no draft may change them."""

    def __init__(self, root: object):
        models = [part for _, part in traverse(root) if isinstance(part, nn.Module)]
        modules = {id(module): module for model in models for module in model.modules()}
        self.before = [(module, _attributes(module)) for module in modules.values()]

    def restore(self) -> bool:
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
    """Return token ids below `vocab` in a `snapshot`; a processor that waits for a token stores its id."""
    ids: dict[int, None] = {}
    for summary in state.values():
        if summary[0] == "int":
            ids[int(summary[1])] = None
        elif summary[0] == "Tensor" and isinstance(summary[-1], tuple) and len(summary[-1]) <= 64:
            ids.update(dict.fromkeys(int(n) for n in summary[-1] if abs(n) < vocab and int(n) == n))
    return [i for i in ids if 0 <= i < vocab][:most]
