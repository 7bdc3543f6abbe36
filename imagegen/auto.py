"""`decoding="auto"`: coupled Jacobi windows, under the goodput controller."""

from __future__ import annotations

from threading import Lock
from weakref import WeakKeyDictionary

from mmspec.core.goodput import Goodput
from mmspec.imagegen.jacobi.drafter import SCD

AUTO = "auto"
LONGEST = 64  # values a pass at most; the controller finds what pays
_controls: WeakKeyDictionary[object, Goodput] = WeakKeyDictionary()
_lock = Lock()


def automatic() -> Goodput:
    """What `decoding="auto"` is of a model of codes: `SCD`, which needs no training, in windows as long as pays by measured
    time, and plain decoding where none does. Exact, see `Goodput`.

    Made once and given to every request, as a pipeline does: it goes on learning.
    """
    return Goodput(SCD(LONGEST))


def automatic_of(pipe: object) -> Goodput:
    """The one of a pipeline, which learns as its requests run. Kept beside the pipeline: nothing is written on it."""
    with _lock:
        return _controls.setdefault(pipe, _controls.get(pipe) or automatic())
