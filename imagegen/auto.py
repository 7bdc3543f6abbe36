"""`decoding="auto"`: coupled Jacobi windows, under the goodput controller."""

from __future__ import annotations

from threading import Lock
from weakref import WeakKeyDictionary

from mmspec.core.fingerprint import layout_of, modules_of
from mmspec.core.goodput import Goodput
from mmspec.imagegen.jacobi.drafter import SCD

AUTO = "auto"
LONGEST = 64  # values a pass at most; the controller finds what pays
# of each pipeline: the layout of its model and the controller
_controls: WeakKeyDictionary[object, tuple[tuple, Goodput]] = WeakKeyDictionary()
_lock = Lock()


def automatic() -> Goodput:
    """What `decoding="auto"` is of a model of codes: `SCD`, which needs no training, in windows as long as pays by measured
    time, and plain decoding where none does. Exact, see `Goodput`.

    Made once and given to every request, as a pipeline does: it goes on learning.
    """
    return Goodput(SCD(LONGEST))


def automatic_of(pipe: object) -> Goodput:
    """Return the controller of a pipeline, which learns as its requests run. Nothing is written on the pipeline.

    A model that has been moved to another device or precision gets a new controller: its times are others.
    """
    layout = layout_of(*modules_of(pipe.model))
    with _lock:
        known = _controls.get(pipe)
        if known is None or known[0] != layout:
            known = _controls[pipe] = layout, automatic()
        return known[1]
