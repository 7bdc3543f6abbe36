"""What `enable` puts on an object, and takes off again without a trace.

A pickled, saved or shallow copy of an enabled object is plain, and a deep copy has a handle of its own. A handle
stands in the `__dict__` of its object, and whatever copies the object copies its `__dict__`. Pickle, `torch.save`,
cloudpickle, dill, Ray and the module `copy` first look in `copyreg` for the object's class, so the handle is left out
there.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from copy import deepcopy
from functools import WRAPPER_ASSIGNMENTS
from typing import Any
from weakref import ref

from mmspec.attach.summary import Summary
from mmspec.core.loop import DecodingRun
from mmspec.core.rules.base import Rule
from mmspec.core.stats import Stats

ATTRIBUTES = ("generate", "start")  # where one is put


class Handle:
    """An enabled object. It stands in the object's own `__dict__`, in front of the method of its class; nothing else changes.

    It acts only for the object that it was put on, and never travels: see `copies.py` for copies of the object. A pickled
    handle is the object's plain method, a deep copy is the handle of the object's deep copy.
    A context manager, which ends with `close`.

    Args:
        obj: The object.
        name: The name of the method.
        drafter: A drafter or a decoding, "auto", or None for plain decoding. Deep copies share it.
        rule: The name of a rule or a Rule; None for the object's default.
        exact: Whether relaxed calls are refused.
    """

    def __init__(self, obj: Any, name: str, drafter: Any, rule: str | Rule | None, exact: bool):
        there = vars(obj).get(name)
        # a handle of another object came along with its `__dict__`
        self._belong(obj, name, None if isinstance(there, Handle) else there)
        self.drafter, self.rule, self.exact = drafter, rule, exact
        for word in WRAPPER_ASSIGNMENTS:  # its words are still those of the method
            if hasattr(self.original, word):
                setattr(self, word, getattr(self.original, word))
        vars(obj)[name] = self

    def _belong(self, obj: Any, name: str, earlier: Callable | None) -> None:
        self.obj, self.name, self.earlier, self.closed = obj, name, earlier, False
        self._total, self._open = Summary(), []

    @property
    def original(self) -> Callable:
        """The method in whose place the handle stands: an attribute that was there before, else the method of the class."""
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
        if id(self) not in memo:  # the object's class makes its copies by itself, or the handle was taken off
            handle = self._copied(memo)
            if not self.closed:
                vars(copied)[self.name] = handle
        return memo[id(self)]

    def _copied(self, memo: dict) -> Handle:
        """The handle of the object's deep copy, which may not have its attributes yet."""
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
        """Takes it off: the object is as it was. A second time does nothing.

        Raises ValueError where something else has since been put in its place or in front of it.
        """
        if self.closed:
            return
        there = vars(self.obj).get(self.name)
        if there is not self:
            raise ValueError(
                f"disable: expected `{self.name}` as `enable` left it, got {there!r} in its place; take that off first"
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
        """What the calls so far took and gave, also after `close`."""
        self._fold()
        whole = self._total.copy()
        for _, stats in self._open:
            whole.add(stats)
        return whole

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In the place of the method."""
        raise TypeError(f"{type(self).__name__} must define __call__")

    def _note(self, stats: Stats) -> None:
        self._total.add(stats)

    def _follow(self, run: DecodingRun) -> None:
        """Counts a request that has not run yet, whoever steps it; nothing of it but its statistics is kept."""
        self._fold()
        self._open.append((ref(run), run.stats))

    def _fold(self) -> None:
        for one in [one for one in self._open if one[0]() is None]:
            self._open.remove(one)
            self._total.add(one[1])

    def _refuse(self, error: ValueError) -> None:
        self._total.refuse(error)


def handle_on(obj: Any) -> Handle | None:
    """The handle that acts for an object."""
    attributes = getattr(obj, "__dict__", {})
    handles = [one for name in ATTRIBUTES if isinstance(one := attributes.get(name), Handle) and one.obj is obj]
    return handles[0] if handles else None


class PipelineHandle(Handle):
    """In front of `pipe.start`. A call that names a decoding or a rule has what it names."""

    def __call__(self, *args: Any, **kwargs: Any) -> DecodingRun:
        if kwargs.get("decoding") is None:
            kwargs["decoding"] = self.drafter
        if self.rule is not None and kwargs.get("rule") is None:
            kwargs["rule"] = self.rule
        try:
            run = self.original(*args, **kwargs)
            if self.exact and not run.rule.exact:
                raise ValueError(f"decoding: expected one that keeps the law, got rule {run.rule.name!r}; enable with "
                                 "mode='relaxed'")  # fmt: skip
        except ValueError as error:
            self._refuse(error)
            raise
        self._follow(run)
        return run


_PROTOCOL = 4  # what `copy` uses, and the default of pickle or below it in every Python


def register_plain_copies(cls: type) -> None:
    """Make copies of the objects of a class leave handles out.

    The entry in `copyreg` stays after `disable`. For objects without a handle it gives what Python gives by itself.
    """
    if not isinstance(copyreg.dispatch_table.get(cls), _PlainReducer):
        copyreg.pickle(cls, _PlainReducer(copyreg.dispatch_table.get(cls)))


class _PlainReducer:
    """Reduces an object for its copies.

    Args:
        earlier: The reducer that was registered for the class before, or None.
    """

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
    """The state of an object without a handle."""
    names = [name for name in ATTRIBUTES if isinstance(state, dict) and isinstance(state.get(name), Handle)]
    if not names:
        return state
    handle, plain = state[names[0]], {name: value for name, value in state.items() if name not in names}
    if handle.obj is not obj:  # it came along with a copy of the `__dict__`
        return plain
    if handle.earlier is not None:
        plain[handle.name] = handle.earlier
    return _StateOfEnabled(plain, handle)


class _StateOfEnabled(dict):
    """The plain state of an enabled object. Pickled it is a dict; a deep copy of it holds the handle of the object's copy."""

    def __init__(self, plain: dict, handle: Handle):
        super().__init__(plain)
        self.handle = handle

    def __reduce_ex__(self, protocol: int) -> tuple:
        return dict, (), None, None, iter(self.items())

    def __deepcopy__(self, memo: dict) -> dict:
        copied = {name: deepcopy(value, memo) for name, value in self.items()}
        copied[self.handle.name] = deepcopy(self.handle, memo)
        return copied
