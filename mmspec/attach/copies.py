"""Copies of an enabled object: a pickled, saved or shallow copy is plain, and a deep copy has a handle of its own.

A handle stands in the `__dict__` of its object, and whatever copies the object copies its `__dict__`. Pickle, `torch.save`,
cloudpickle, dill, Ray and the module `copy` first look in `copyreg` for the object's class, so the handle is left out there.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from mmspec.attach.handle import ATTRIBUTES, Handle

_PROTOCOL = 4  # what `copy` uses, and the default of pickle or below it in every Python


def leave_handles_out(cls: type) -> None:
    """Make copies of the objects of a class leave handles out.

    The entry in `copyreg` stays after `disable`. For objects without a handle it gives what Python gives by itself.
    """
    if not isinstance(copyreg.dispatch_table.get(cls), _Reducer):
        copyreg.pickle(cls, _Reducer(copyreg.dispatch_table.get(cls)))


class _Reducer:
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
