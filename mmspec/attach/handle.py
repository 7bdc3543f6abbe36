"""The handle that `enable` puts on an object and `disable` removes without a trace.

A handle is in the `__dict__` of its object, which copies of the object copy too. Pickle, `torch.save`, cloudpickle,
dill, Ray and the module `copy` first look up the object's class in `copyreg`, so the reducer registered there leaves
the handle out."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from copy import deepcopy
from functools import WRAPPER_ASSIGNMENTS
from typing import Any
from weakref import ref

from mmspec.attach.summary import Summary
from mmspec.core.round.loop import DecodingRun
from mmspec.core.round.rules.base import Rule
from mmspec.core.round.stats import Stats

ATTRIBUTES = ("generate", "start")  # attributes that a handle may replace


class Handle:
    """The callable that replaces a method of an enabled object, in its own `__dict__`, and acts only for that object. A
    pickled handle is the object's plain method; a deep copy is the handle of the object's deep copy and shares the
    drafter. That is a drafter, a decoding, "auto", or None for plain decoding. `rule` None is the object's default.
    `exact` refuses relaxed calls. As a context manager it ends with `close`."""

    def __init__(self, obj: Any, name: str, drafter: Any, rule: str | Rule | None, exact: bool):
        there = vars(obj).get(name)
        # a copied `__dict__` may hold the handle of another object
        self._belong(obj, name, None if isinstance(there, Handle) else there)
        self.drafter, self.rule, self.exact = drafter, rule, exact
        for word in WRAPPER_ASSIGNMENTS:  # name and docstring are still those of the method
            if hasattr(self.original, word):
                setattr(self, word, getattr(self.original, word))
        vars(obj)[name] = self

    def _belong(self, obj: Any, name: str, earlier: Callable | None) -> None:
        self.obj, self.name, self.earlier, self.closed = obj, name, earlier, False
        self._total, self._open = Summary(), []

    @property
    def original(self) -> Callable:
        """The replaced method: the object's earlier attribute of this name, else the method of its class."""
        return self._of_class() if self.earlier is None else self.earlier

    __wrapped__ = original  # the signature is still that of the method

    def _of_class(self) -> Callable:
        return getattr(type(self.obj), self.name).__get__(self.obj)

    def __copy__(self) -> Handle:
        return self

    def __deepcopy__(self, memo: dict) -> Handle:
        if id(self.obj) in memo:
            return self._copied(memo)
        copied = deepcopy(self.obj, memo)
        if id(self) not in memo:  # the object's class defines its own deep copy, or the handle was closed
            handle = self._copied(memo)
            if not self.closed:
                vars(copied)[self.name] = handle
        return memo[id(self)]

    def _copied(self, memo: dict) -> Handle:
        """Return the handle of the object's deep copy, which may not have its attributes yet."""
        handle = object.__new__(type(self))
        memo[id(self)] = handle
        vars(handle).update(vars(self))
        handle._belong(memo[id(self.obj)], self.name, deepcopy(self.earlier, memo))
        if self.closed:
            handle.closed, handle._total = True, self.summary()
        return handle

    def __reduce_ex__(self, protocol: int) -> tuple:
        return getattr, (self.obj, self.name)

    def close(self) -> None:
        """Remove the handle and restore the object; a second call does nothing."""
        if self.closed:
            return
        there = vars(self.obj).get(self.name)
        if there is not self:
            raise ValueError(
                f"disable: expected `{self.name}` as `enable` left it, got {there!r} in its place; remove that first"
            )
        if self.earlier is None:
            del vars(self.obj)[self.name]
        else:
            vars(self.obj)[self.name] = self.earlier
        self.closed = True

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def summary(self) -> Summary:
        self._fold()
        whole = self._total.copy()
        for _, stats in self._open:
            whole.add(stats)
        return whole

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} must define __call__")

    def _note(self, stats: Stats) -> None:
        self._total.add(stats)

    def _follow(self, run: DecodingRun) -> None:
        """Count a request that has not run yet. Only its statistics are stored, and anyone may step it."""
        self._fold()
        self._open.append((ref(run), run.stats))

    def _fold(self) -> None:
        for finished in [run for run in self._open if run[0]() is None]:
            self._open.remove(finished)
            self._total.add(finished[1])

    def _refuse(self, error: ValueError) -> None:
        self._total.refuse(error)


def handle_on(obj: Any) -> Handle | None:
    attributes = [getattr(obj, "__dict__", {}).get(name) for name in ATTRIBUTES]
    return next((handle for handle in attributes if isinstance(handle, Handle) and handle.obj is obj), None)


class PipelineHandle(Handle):
    """The handle in place of `pipe.start`; a decoding or rule named in a call takes precedence over the handle's."""

    def __call__(self, *args: Any, **kwargs: Any) -> DecodingRun:
        if kwargs.get("decoding") is None:
            kwargs["decoding"] = self.drafter
        if self.rule is not None and kwargs.get("rule") is None:
            kwargs["rule"] = self.rule
        try:
            run = self.original(*args, **kwargs)
            if self.exact and not run.rule.exact:
                raise ValueError(
                    f"decoding: expected a decoding with an exact rule, got rule {run.rule.name!r}; enable "
                    "with mode='relaxed'"
                )
        except ValueError as error:
            self._refuse(error)
            raise
        self._follow(run)
        return run


_PROTOCOL = 4  # the protocol that `copy` uses; pickle's default is never below it


def register_plain_copies(cls: type) -> None:
    """Register a reducer, which stays in `copyreg` after `disable`, so that copies of a class's objects have no handle."""
    if not isinstance(copyreg.dispatch_table.get(cls), _PlainReducer):
        copyreg.pickle(cls, _PlainReducer(copyreg.dispatch_table.get(cls)))


class _PlainReducer:
    """The reducer that leaves the handle out; `earlier` is the class's reducer before, or None."""

    def __init__(self, earlier: Callable | None):
        self.earlier = earlier

    def __call__(self, obj: Any) -> str | tuple:
        reduced = obj.__reduce_ex__(_PROTOCOL) if self.earlier is None else self.earlier(obj)
        if isinstance(reduced, str) or len(reduced) < 3:
            return reduced
        make, arguments, state, *rest = reduced
        if isinstance(state, tuple) and len(state) == 2:  # of a class that has slots too
            return make, arguments, (_plain(obj, state[0]), state[1]), *rest
        return make, arguments, _plain(obj, state), *rest


def _plain(obj: Any, state: Any) -> Any:
    names = [name for name in ATTRIBUTES if isinstance(state, dict) and isinstance(state.get(name), Handle)]
    if not names:
        return state
    handle, plain = state[names[0]], {name: value for name, value in state.items() if name not in names}
    if handle.obj is not obj:  # copied from another object along with the `__dict__`
        return plain
    if handle.earlier is not None:
        plain[handle.name] = handle.earlier
    return _StateOfEnabled(plain, handle)


class _StateOfEnabled(dict):
    """The plain state of an enabled object: pickled as a dict; a deep copy holds the handle of the object's copy."""

    def __init__(self, plain: dict, handle: Handle):
        super().__init__(plain)
        self.handle = handle

    def __reduce_ex__(self, protocol: int) -> tuple:
        return dict, (), None, None, iter(self.items())

    def __deepcopy__(self, memo: dict) -> dict:
        copied = {name: deepcopy(value, memo) for name, value in self.items()}
        copied[self.handle.name] = deepcopy(self.handle, memo)
        return copied
