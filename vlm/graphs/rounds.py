"""Captured rounds that later requests reuse."""

from __future__ import annotations

from functools import partial
from threading import Lock
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from mmspec.core.layers.fingerprint import modules_of, places_of
from mmspec.core.layers.graphs import CaptureRefused, capture
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DraftState, NoDraft
from mmspec.core.round.rules.base import Rule
from mmspec.vlm.graphs.graph_slot import GraphSlot, Recorder, reach_of
from mmspec.vlm.target import TextTarget

_SLOTS = 128  # cache slots of the smallest graph slot; larger graph slots have a power of two
_PROVEN: WeakKeyDictionary[nn.Module, dict[tuple, str | None]] = WeakKeyDictionary()


class Rounds:
    """Graph slots of captured rounds, each recorded once and reused by requests of the same kind.

    A kind is the target, drafter, rule and settings, with the rows and cache slots rounded up. Concurrent requests have a
    graph slot each. Pass the same object as `capture=` of several requests; `capture=True` creates an object for the
    request alone. It holds the target, the drafter and the memory of its graph slots. A round is recorded again when
    weights have moved or a setting of the modules, such as the adapter, has changed; weights may change in place.

    Args:
        most: The number of unused graph slots that wait for requests.
        record: The function that records a round.
        late: The number of rounds by which the host reads results late; None for the default.
    """

    def __init__(self, most: int = 4, *, record: Recorder = capture, late: int | None = None):
        if most < 0:
            raise ValueError(f"most: expected 0 or more slots, got {most}")
        self.most, self.record, self.late = most, record, late
        self._waiting: list[tuple[tuple, GraphSlot]] = []
        self._lock = Lock()

    def __reduce__(self) -> tuple:
        """Copy the settings alone: a graph slot serves one request at a time, so two objects cannot share it."""
        return partial(type(self), record=self.record, late=self.late), (self.most,)

    def graph_slot(
        self, target: TextTarget, state: DraftState, rule: Rule, keys: Keys, slots: int, width: int
    ) -> GraphSlot:
        """Return a slot of at least `slots` cache slots, loaded from a request after its prefill or a smaller slot."""
        rows, bound = rows_for(target), slots_for(slots)
        places = places_of(target.parts.model, *modules_of(getattr(state, "drafter", None)))
        kind = (*_kind(target, state, rule), width, places[0])
        reach = -(-reach_of(state) // _SLOTS) * _SLOTS
        # a drafter is often copied for a request, so its weights stand for it; a waiting slot keeps the model alive
        name = (id(target.parts.model), rows, bound, reach, target.device, kind, places)
        slot = self._take(name)
        if slot is None:
            slot = GraphSlot(target, state, rule, keys, rows=rows, bound=bound, width=width, reach=reach, name=name)
            slot.load(target, state, keys)
            self._rehearse(slot, kind)
        slot.load(target, state, keys)
        return slot

    @property
    def nbytes(self) -> int:
        """The bytes of the graph slots that wait for requests, without the private memory of their graphs."""
        with self._lock:
            return sum(storage.nbytes() for _, slot in self._waiting for storage in slot.memory)

    def release(self, slot: GraphSlot) -> None:
        """Return a graph slot whose request has finished."""
        slot.leave()
        with self._lock:
            slots = [*self._waiting, (slot.name, slot)]  # those that no longer wait are destroyed behind the lock
            self._waiting = slots[-self.most :] if self.most else []

    def _take(self, name: tuple) -> GraphSlot | None:
        with self._lock:
            index = next((n for n, (other, _) in enumerate(self._waiting) if other == name), None)
            slot = None if index is None else self._waiting.pop(index)[1]
        if slot is not None:
            slot.enter()
        return slot

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
    """Return the number of nodes in a draft's longest path, the root included."""
    return 1 if isinstance(state, NoDraft) else state.deepest + 1


def rows_for(target: TextTarget) -> int:
    """Return the rows of a graph slot: the request's on a CPU, where empty rows cost time, else a power of two."""
    batch = target.batch
    return batch if target.device.type == "cpu" else 1 << (batch - 1).bit_length()


def slots_for(slots: int) -> int:
    return max(_SLOTS, 1 << (slots - 1).bit_length())


def _kind(target: TextTarget, state: DraftState, rule: Rule) -> tuple:
    parts = target.parts
    warps = tuple((type(processor), _described(vars(processor))) for processor in target.processors.free)
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
        (name, str(value.tolist()) if isinstance(value, Tensor) else _described_value(value))
        for name, value in settings.items()
    )


def _described_value(value: object) -> str:
    return f"{type(value).__name__} {_described(vars(value))}" if hasattr(value, "__dict__") else repr(value)
