"""The state of users' code around modules: whether calls change it, and its restoration after a trial. A trial proves
code whose results do not depend on earlier calls, unlike a counter or a random number generator. Code that only
records, in containers that grow and in tensors of activations, is no obstacle, and neither is a hook whose code can
neither return nor write states."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy
import torch
from torch import Tensor, nn

from mmspec.core.layers.fingerprint import layout_of
from mmspec.core.round.snapshot import ATOMS, is_full, snapshot, traverse
from mmspec.core.round.user_code import UserCode, functions_of, is_library, listed, only_reads, package_of, weakly

_GROWING = {"list", "dict", "OrderedDict", "defaultdict", "deque", "set"}
_OF_MODULES = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers"}
_LARGEST = 2**20  # numbers of the largest tensor that is restored


@dataclass(frozen=True, slots=True)
class _Variable:
    owner: Any
    name: str

    def read(self) -> object:
        return self.owner.get(self.name) if isinstance(self.owner, dict) else getattr(self.owner, self.name)

    def write(self, value: object) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


class CodeState:
    """The state that users' code reaches: its closures, attributes, defaults, and the globals that it names."""

    def __init__(self, code: Sequence[UserCode]):
        self.code = code
        parts = [part for piece in code for part in functions_of(piece.code)]
        self.parts = [part for part in parts if isinstance(part, nn.Module) or not is_library(package_of(part))]
        self.parts += [piece.code for piece in code if isinstance(piece.code, partial)]
        self.variables = [variable for part in self.parts for variable in _variables(part)]

    def snapshot(self) -> dict[str, object]:
        return snapshot(self._root())

    def _root(self) -> list[object]:
        return [*self.parts, *(variable.read() for variable in self.variables)]

    @contextmanager
    def restored(self) -> Iterator[None]:
        bits, python = numpy.random.get_state(), random.getstate()
        values = [variable.read() for variable in self.variables]
        inside = [(part, _contents(part)) for _, part in traverse(self._root()) if type(part) not in ATOMS]
        try:
            with torch.random.fork_rng(started_gpus()):
                yield
        finally:
            numpy.random.set_state(bits)
            random.setstate(python)
            for variable, value in zip(self.variables, values, strict=True):
                if variable.read() is not value:
                    variable.write(value)
            for part, contents in inside:
                if contents is not None:
                    _restore(part, contents)


@dataclass(frozen=True, slots=True)
class CodeOutcome:
    identity: tuple  # the pieces of code and their places, weakly
    layout: tuple  # of the model, see `layout_of`
    state: dict[str, tuple]  # see `CodeState.snapshot`
    recorded: set[str]  # the paths of the parts in which the code only records
    stateless: bool  # whether calls change nothing
    sentence: str | None  # the refusal, None for a passed trial

    def holds_for(self, identity: tuple, layout: tuple, state: dict[str, tuple]) -> bool:
        if self.identity != identity or self.layout != layout:
            return False
        changed = _changed(self.state, state)
        return all(
            any(part in self.recorded for part in accumulate(path.split("."), "{}.{}".format)) for path in changed
        )


# per model, the latest outcome of each kind of trial
_OUTCOMES: WeakKeyDictionary[object, dict[Hashable, CodeOutcome]] = WeakKeyDictionary()


def outcome_of(
    owner: object,
    kind: Hashable,
    code: Sequence[UserCode],
    modules: Sequence[nn.Module],
    trial: Callable[[], ValueError | None],
    draws: Callable[[], bool],
) -> CodeOutcome:
    """Return the stored outcome of users' code, or run `trial` and undo the code's changes. The trial returns the
    refusal, with a cause if an error of the code interrupted it. `draws`: passes draw random numbers. The layout of
    `modules` must stay the same."""
    state, judged = CodeState(code), CodeState([piece for piece in code if not only_reads(piece)])
    identity = tuple((weakly(piece.code), piece.place) for piece in code)
    before, layout = judged.snapshot(), layout_of(*modules)
    known = _OUTCOMES.setdefault(owner, {})
    if kind in known and known[kind].holds_for(identity, layout, before):
        return known[kind]
    with state.restored():
        failure = trial()
        is_drawn = failure is None and draws()
        after = judged.snapshot()
    changed = _changed(before, after)
    recorded = {path for path in changed if _is_recording(before.get(path), after.get(path))}
    sentence = None if failure is None else str(failure)
    if is_drawn or changed != recorded:
        habit = "draws random numbers" if is_drawn else "keeps state that its calls change"
        sentence = (
            f"model: expected code whose result depends on its inputs alone, got code that {habit}; remove "
            f"{listed(code)}, or decode without drafts"
        )
    stateless = not (changed or is_drawn or (failure is not None and failure.__cause__ is not None))
    outcome = CodeOutcome(identity, layout, judged.snapshot(), recorded, stateless, sentence)
    if failure is None or failure.__cause__ is None:
        known[kind] = outcome
    return outcome


def _changed(before: Mapping[str, tuple], after: Mapping[str, tuple]) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _is_recording(old: tuple | None, new: tuple | None) -> bool:
    """Return whether a part whose summary changed only records: a new part, a container that grew, or activations."""
    if old is None or new is None:
        return new is not None
    if old[0] in _GROWING and new[0] == old[0]:
        return new[1] >= old[1]
    return new[0] == "Tensor" and new[2] not in ((), (1,))  # a tensor of a single number may be a counter


def chance() -> list[object]:
    states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, started_gpus())]
    return [*(state.tolist() for state in states), random.getstate(), repr(numpy.random.get_state())]


def started_gpus() -> list[int]:
    """A process that has not used CUDA stays without it."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def _variables(part: object) -> Iterator[_Variable]:
    kinds = [type(part)]
    if isinstance(part, FunctionType):
        yield from (_Variable(cell, "cell_contents") for cell in part.__closure__ or () if is_full(cell))
        yield from (_Variable(part, name) for name in ("__defaults__", "__kwdefaults__"))
        named = [name for name in _names(part.__code__) if name in part.__globals__]
        yield from (_Variable(part.__globals__, n) for n in named if not isinstance(part.__globals__[n], ModuleType))
        kinds = [value for name in named if isinstance(value := part.__globals__[name], type)]
    elif isinstance(part, nn.Module):
        yield from (_Variable(vars(part), name) for name in vars(part) if name not in _OF_MODULES)
    for kind in kinds:
        if not is_library(kind.__module__.partition(".")[0]):
            names = (name for name, value in vars(kind).items() if not name.startswith("__") and not callable(value))
            yield from (_Variable(kind, name) for name in names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _contents(part: Any) -> Any:
    """The contents of a part that calls may change in place; None for a part that is not restored."""
    if isinstance(part, Tensor):
        return None if part.is_meta or part.numel() > _LARGEST else part.detach().clone()
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, list | deque | set):
        return list(part)
    if isinstance(part, dict):
        return dict(part)
    if isinstance(part, type | ModuleType | FunctionType | nn.Module) or not hasattr(part, "__dict__"):
        return None
    return dict(vars(part))


def _restore(part: Any, contents: Any) -> None:
    if isinstance(part, Tensor):
        if part.shape == contents.shape and not torch.equal(part.detach(), contents):
            part.detach().copy_(contents)
    elif isinstance(part, torch.Generator):
        part.set_state(contents)
    else:
        now = part if isinstance(part, list | deque | set | dict) else vars(part)
        if _identities(now) == _identities(contents):
            return
        if isinstance(now, dict):
            for name in now.keys() - contents.keys():
                del now[name]
            now.update(contents)
        else:
            now.clear()
            (now.update if isinstance(now, set) else now.extend)(contents)


def _identities(contents: Any) -> list[tuple[int, ...]]:
    items = contents.items() if isinstance(contents, dict) else [(item,) for item in contents]
    return [tuple(map(id, item)) for item in items]
