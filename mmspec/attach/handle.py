"""What `enable` puts on an object, and takes off again without a trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any
from weakref import ref

from mmspec.attach.report import Summary
from mmspec.core.loop import Decoding
from mmspec.core.rules.base import Rule
from mmspec.core.stats import Stats

ATTRIBUTES = ("generate", "start")  # where one is put


class Handle:
    """An enabled object. It stands in the object's own `__dict__`, in front of the method of its class; nothing else changes.

    obj: the object.   name: of the method.   drafter: what drafts, None for nothing.   rule: a name or a Rule, None for the
    object's default.   exact: calls that would be relaxed are refused.   closed: it has been taken off.
    A context manager, which ends with `close`.
    """

    def __init__(self, obj: Any, name: str, drafter: Any, rule: str | Rule | None, exact: bool):
        self.obj, self.name, self.drafter, self.rule, self.exact = obj, name, drafter, rule, exact
        self.original: Callable = getattr(obj, name)
        self._had, self.closed = name in vars(obj), False
        self._total, self._open = Summary(), []
        update_wrapper(self, self.original, updated=())  # its signature and words are still the method's
        vars(obj)[name] = self

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
        if self._had:
            vars(self.obj)[self.name] = self.original
        else:
            del vars(self.obj)[self.name]
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

    def _follow(self, run: Decoding) -> None:
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
    """The handle that stands on an object."""
    found = getattr(obj, "__dict__", {})
    return next((found[name] for name in ATTRIBUTES if isinstance(found.get(name), Handle)), None)
