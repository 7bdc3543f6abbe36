"""Captured rounds, kept from request to request."""

from __future__ import annotations

from threading import Lock
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from mmspec.core.fingerprint import fingerprint, modules_of
from mmspec.core.graphs import CaptureRefused, capture
from mmspec.core.keys import Keys
from mmspec.core.loop import DraftState, NoDraft
from mmspec.core.rules.base import Rule
from mmspec.vlm.graphs.graph_slot import GraphSlot, Recorder, reach_of
from mmspec.vlm.target import TextTarget

_SLOTS = 128  # of the smallest graph slot; each larger one has twice as many
_PROVEN: WeakKeyDictionary[nn.Module, dict[tuple, str | None]] = WeakKeyDictionary()


class Rounds:
    """Graph slots of captured rounds. Requests of one kind (target, drafter, rule, settings, rows and cache slots rounded up)
    take turns in a graph slot, and those at one time have a graph slot each, so that a round is recorded once.

    Pass the same object as `capture=` of all requests that share; `capture=True` makes an object for the request alone. It
    holds the target, the drafter and the memory of its graph slots (a cache each) as long as it lives. A round is recorded
    again when weights of the target or the drafter lie at another address, and when a setting of their modules, such as the
    adapter, has changed; weights that are written in place serve the recorded round.
    most: graph slots that wait for requests.
    """

    def __init__(self, most: int = 4, *, record: Recorder = capture, late: int | None = None):
        if most < 0:
            raise ValueError(f"most: expected 0 or more slots, got {most}")
        self.most, self.record, self.late = most, record, late
        self._waiting: list[tuple[tuple, GraphSlot]] = []
        self._lock = Lock()

    def graph_slot(
        self, target: TextTarget, state: DraftState, rule: Rule, keys: Keys, slots: int, width: int
    ) -> GraphSlot:
        """A graph slot with these rows in it, of at least so many cache slots.

        Raises CaptureRefused where a round cannot be captured.
        target, state, keys: of a request behind its prompt, or of a smaller slot.   width: see `width_of`.
        """
        rows, bound = rows_for(target), slots_for(slots)
        places = fingerprint(target.parts.model, *modules_of(getattr(state, "drafter", None))).places
        kind = (*_kind(target, state, rule), width, places[0])
        reach = -(-reach_of(state) // _SLOTS) * _SLOTS
        # a waiting slot keeps both alive, so that no other object can have their addresses
        owners = id(target.parts.model), id(getattr(state, "drafter", None))
        name = (*owners, rows, bound, reach, target.device, kind, places)
        found = self._take(name)
        if found is None:
            found = GraphSlot(target, state, rule, keys, rows=rows, bound=bound, width=width, reach=reach, name=name)
            found.load(target, state, keys)
            self._rehearse(found, kind)
        found.load(target, state, keys)
        return found

    def release(self, slot: GraphSlot) -> None:
        """The rows in a graph slot are done with it."""
        with self._lock:
            self._waiting = ([*self._waiting, (slot.name, slot)])[-self.most :] if self.most else []

    def _take(self, name: tuple) -> GraphSlot | None:
        with self._lock:
            for n, (other, slot) in enumerate(self._waiting):
                if other == name:
                    del self._waiting[n]
                    return slot
        return None

    def _rehearse(self, slot: GraphSlot, kind: tuple) -> None:
        known = _PROVEN.setdefault(slot.target.parts.model, {})
        if known.get(kind) is not None:
            raise CaptureRefused(known[kind])
        try:
            slot.rehearse(kind in known, self.record)
        except CaptureRefused as refused:
            known[kind] = str(refused)
            raise
        known[kind] = None


def width_of(state: DraftState) -> int:
    """Nodes of a draft's longest path, the root included."""
    return 1 if isinstance(state, NoDraft) else state.deepest + 1


def rows_for(target: TextTarget) -> int:
    """Rows of a graph slot for a request: as many as it has on a CPU, where an empty row costs as much as a full one;
    elsewhere the next power of two."""
    batch = target.batch
    return batch if target.device.type == "cpu" else 1 << (batch - 1).bit_length()


def slots_for(slots: int) -> int:
    """Cache slots of a graph slot for so many."""
    return max(_SLOTS, 1 << (slots - 1).bit_length())


def _kind(target: TextTarget, state: DraftState, rule: Rule) -> tuple:
    """What of a request is written into a round that is captured for it."""
    parts = target.parts
    warps = tuple((type(one), _described(vars(one))) for one in target.processors.free)
    shape = getattr(state, "shape", None)
    drafted = (type(state), _drafter(state), repr(shape))
    shaped = tuple(target.next_position.shape[:-1]), target.levels, parts.dtype, parts.learned_positions
    ends = tuple(sorted(target.eos))
    return type(rule), _described(vars(rule)), target.greedy, warps, drafted, shaped, ends


def _drafter(state: DraftState) -> tuple:
    drafter = getattr(state, "drafter", None)
    return (type(drafter), str(getattr(drafter, "config", None)))


def _described(settings: dict) -> tuple:
    return tuple(
        (name, str(one.tolist()) if isinstance(one, Tensor) else _described_value(one))
        for name, one in settings.items()
    )


def _described_value(one: object) -> str:
    return f"{type(one).__name__} {_described(vars(one))}" if hasattr(one, "__dict__") else repr(one)
