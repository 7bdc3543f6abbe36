"""A graph slot keeps the memory of its round, serves every request of its kind, and orders requests on streams."""

from __future__ import annotations

import copy
import functools
import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import mmspec
from mmspec.core.layers.fingerprint import places_of
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.draft import Draft, Evidence
from mmspec.vlm.drafters import Chain, DynamicTree, StaticTree
from mmspec.vlm.graphs import graph_slot
from mmspec.vlm.graphs.graph_slot import CapturedTarget, GraphSlot
from mmspec.vlm.graphs.rounds import Rounds
from tests.core.layers.graphs.recorded import Stale, recorded
from tests.vlm.drafters.trained import DRAFTERS
from tests.vlm.graphs.cases import GREEDY, SAMPLED, WARM, alike, both, chain, narrow, rows
from tests.vlm.tiny import prompt, tiny

REQUESTS = ((1, 9), (3, 14), (1, 24))  # rows and tokens
FAMILIES = ("msd", "vispec", "specvlm", "eagle3")


def kinds() -> dict[str, tuple]:
    """The name of every kind of captured round: model, drafter, settings, prompts and rule."""
    text, pictures = (narrow, rows), (lambda: tiny("llava"), lambda batch: prompt("llava", images=1, batch=batch))
    trees = {"static": StaticTree(), "dynamic": DynamicTree(8, 3, 3)}
    found = {
        "pictures, plain": (pictures, lambda: None, GREEDY, "exact"),
        "pictures, chain": (pictures, chain, GREEDY, "exact"),
        "pictures, sampled chain": (pictures, chain, SAMPLED | {"seed": 1}, "exact"),
        "text, sampled": (text, lambda: None, WARM, "exact"),
    }
    for rule in ("token", "block", "match"):
        found[f"text, {rule}"] = (text, lambda: chain(kind="narrow"), WARM, rule)
    for name, shape in trees.items():
        for settings in (GREEDY, WARM):
            label = f"text, {name} tree, {'greedy' if settings is GREEDY else 'sampled'}"
            found[label] = (text, lambda shape=shape: chain(kind="narrow").with_shape(shape), settings, "exact")
    for name in FAMILIES:
        made = lambda name=name: DRAFTERS[name]().with_shape(Chain(FixedLength(3)))  # noqa: E731
        found[f"pictures, {name}"] = (pictures, made, SAMPLED | {"seed": 1}, "exact")
    return found


def empty_caches() -> None:
    """Push every entry out of the project's caches, as requests of many other shapes would."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mmspec") and module is not None:
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    gc.collect()


@pytest.mark.default_cells("pictures, plain", "text, block", "text, static tree, sampled", "text, dynamic tree, greedy")
@pytest.mark.parametrize("name", kinds())
def test_a_replay_reads_memory_that_its_slot_keeps(name: str) -> None:
    (model, inputs), drafter, settings, rule = kinds()[name]
    model, drafter, kept = model(), drafter(), Rounds(record=recorded, late=1)
    for batch, length in REQUESTS:
        arguments = dict(drafter=drafter, rule=rule, max_new_tokens=length, **settings)
        assert alike(*both(model, kept, **arguments, **inputs(batch)))
        empty_caches()
    assert len(kept._waiting) == 2  # the requests of a row share a slot


def test_rounds_are_recorded_with_the_attention_of_the_ordinary_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, seen = [], []

    @contextmanager
    def block(device: torch.device) -> Iterator[None]:
        inside.append(device)
        yield
        inside.pop()

    def noted(target: CapturedTarget, draft: Draft) -> Evidence:
        seen.append(bool(inside))
        return score(target, draft)

    score = CapturedTarget.score
    monkeypatch.setattr(graph_slot, "attention_of_changing_shapes", block)
    monkeypatch.setattr(CapturedTarget, "score", noted)
    mmspec.generate(narrow(), capture=True, max_new_tokens=6, **GREEDY, **rows(2))
    assert seen and all(seen)


def test_a_slot_without_its_memory_is_noticed() -> None:
    kept = Rounds(record=recorded)
    settings = dict(drafter=chain(kind="narrow").with_shape(StaticTree()), max_new_tokens=9, **WARM)
    mmspec.generate(narrow(), capture=kept, **settings, **rows(2))
    kept._waiting[0][1].memory.clear()
    empty_caches()
    with pytest.raises(Stale):
        mmspec.generate(narrow(), capture=kept, **settings, **rows(2))


def test_a_slot_keeps_no_weights_that_have_moved() -> None:
    model, kept = copy.deepcopy(narrow()), Rounds()
    mmspec.generate(model, capture=kept, max_new_tokens=5, **GREEDY, **rows(1))
    weight = next(model.parameters())
    old = weakref.ref(weight.untyped_storage())
    weight.data = weight.data.clone()
    gc.collect()
    assert old() is None


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> list[GraphSlot]:
    """The graph slots that a test makes."""
    made, make = [], GraphSlot.__init__

    def noted(slot: GraphSlot, *args: object, **kwargs: object) -> None:
        make(slot, *args, **kwargs)
        made.append(slot)

    monkeypatch.setattr(GraphSlot, "__init__", noted)
    return made


def test_equal_requests_record_once_with_a_drafter_of_another_precision(slots: list[GraphSlot]) -> None:
    model, kept = copy.deepcopy(narrow()).bfloat16(), Rounds()
    for _ in range(3):
        mmspec.generate(model, drafter=chain(kind="narrow"), capture=kept, max_new_tokens=6, **WARM, **rows(2))
    assert len(slots) == 1


def test_equal_requests_record_once_with_a_shape_set_in_the_call(slots: list[GraphSlot]) -> None:
    kept = Rounds()
    for length in (3, 3, 4, 3):
        drafter = chain(kind="narrow").with_shape(Chain(FixedLength(length)))
        pair = both(narrow(), kept, drafter=drafter, max_new_tokens=6, **WARM, **rows(2))
        assert alike(*pair)
    assert len(slots) == 2


def test_other_weights_of_an_equal_drafter_record_again(slots: list[GraphSlot]) -> None:
    kept, drafter = Rounds(), chain(kind="narrow")
    for other in (drafter, copy.deepcopy(drafter)):
        assert alike(*both(narrow(), kept, drafter=other, max_new_tokens=6, **WARM, **rows(2)))
    assert len(slots) == 2


def test_a_longer_static_cache_of_transformers_records_nothing_again(slots: list[GraphSlot]) -> None:
    model, kept = copy.deepcopy(narrow()), Rounds()
    for length in (64, 128):
        before = places_of(model)
        model._previous_max_cache_length = length  # as `generate` with a static cache leaves it
        assert places_of(model) == before
        mmspec.generate(model, capture=kept, max_new_tokens=6, **GREEDY, **rows(2))
    assert len(slots) == 1


class Stream:
    """A stream that notes its work."""

    def __init__(self, name: str, calls: list[tuple]):
        self.name, self.calls = name, calls

    def wait_event(self, event: Event) -> None:
        self.calls.append((self.name, "waits for", event.stream.name))


class Event:
    stream: Stream

    def record(self, stream: Stream) -> None:
        self.stream = stream


def test_a_request_waits_for_the_last_round_of_the_request_before(
    slots: list[GraphSlot], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, kept = [], Rounds()
    streams = {name: Stream(name, calls) for name in ("first", "second")}
    now = [streams["first"]]
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now[0])
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: calls.append((stream.name, "uses")))
    monkeypatch.setattr("mmspec.kernels.dispatch.has_triton", lambda: False)
    request = dict(max_new_tokens=6, **GREEDY, **rows(2))
    mmspec.generate(narrow(), capture=kept, **request)
    slots[0]._stream = streams["first"]  # a slot of a CPU has none
    mmspec.generate(narrow(), capture=kept, **request)
    assert not calls  # the request before left the slot without an event
    mmspec.generate(narrow(), capture=kept, **request)
    assert calls == [("first", "waits for", "first")]
    now[0] = streams["second"]
    mmspec.generate(narrow(), capture=kept, **request)
    assert calls[1] == ("second", "waits for", "first")
    assert calls[2:] == [("second", "uses")] * len(slots[0].memory)
