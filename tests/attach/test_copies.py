"""A handle acts for one object and never travels: copies are plain, but for deep ones, which have handles of their own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any

import pytest
import torch
from torch import nn

import mmspec
from mmspec.attach.handle import handle_on
from mmspec.imagegen import SJD
from mmspec.vlm.auto import automatic, offer
from mmspec.vlm.drafters import PromptLookup, TokenRecycling
from tests.attach.traces import traces
from tests.evaluate.tiny_images import classed
from tests.vlm.drafters.trained import make
from tests.vlm.test_unwrapping import Adapted
from tests.vlm.tiny import prompt, tiny

STEPS = 6


class Locked:
    """A drafter that no copy can be made of."""

    name = "locked"

    def __init__(self) -> None:
        self.lock, self.context, self.inner = Lock(), ContextVar("context"), PromptLookup()

    def open(self, target: object) -> object:
        return self.inner.open(target)


def unpickled(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 of this test's own


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def cloudpickled(model: nn.Module) -> nn.Module:
    return unpickled(pytest.importorskip("cloudpickle").dumps(model))


TRAVELS: dict[str, Callable[[Any], Any]] = {
    **{
        f"pickle {protocol}": partial(lambda obj, protocol: unpickled(pickle.dumps(obj, protocol)), protocol=protocol)
        for protocol in (2, 5)
    },
    "torch.save": saved,
    "cloudpickle": cloudpickled,
    "copy": copy.copy,
}
DRAFTERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "lookup": PromptLookup,
    "recycling": TokenRecycling,
    "auto": lambda: "auto",
    "locked": Locked,
    "eagle": lambda: make("eagle"),
    "dspark": lambda: make("dspark"),
}


def inputs() -> dict:
    return dict(prompt("llama"), max_new_tokens=STEPS, do_sample=False)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("way", TRAVELS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_copy_that_travels_is_plain(way: str, drafter: str) -> None:
    model = copy.deepcopy(tiny("llama"))
    plain = list(vars(TRAVELS[way](model)))
    with mmspec.enable(model, DRAFTERS[drafter]()) as handle:
        copied = TRAVELS[way](model)
        assert list(vars(copied)) == plain and type(copied) is type(model) and handle_on(copied) is None
        assert handle_on(model) is handle
        with pytest.raises(ValueError, match="obj: expected an enabled object"):
            mmspec.disable(copied)
        mmspec.enable(copied, PromptLookup()).close()
    assert torch.equal(copied.generate(**inputs()), model.generate(**inputs())) and handle.summary().calls == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_deep_copy_has_a_handle_of_its_own(drafter: str) -> None:
    model, given = copy.deepcopy(tiny("llama")), DRAFTERS[drafter]()
    expected = model.generate(**inputs())
    with mmspec.enable(model, given) as handle:
        model.generate(**inputs())
        copied = copy.deepcopy(model)
        other = handle_on(copied)
        assert other is not None and other is not handle and other.obj is copied
        assert torch.equal(copied.generate(**inputs()), expected)
        assert handle.summary().calls == other.summary().calls == 1
        assert given == "auto" or other.drafter is handle.drafter is given
        mmspec.disable(copied)
        assert "generate" not in vars(copied) and handle_on(model) is handle


def test_auto_of_a_deep_copy_is_a_separate_controller_over_the_offered_drafters() -> None:
    model, drafter = copy.deepcopy(tiny("llama")), make("eagle")
    offer(model, lambda: drafter)
    for wrapped in (model, Adapted(model)):
        with mmspec.enable(wrapped, "auto") as handle:
            copied = copy.deepcopy(wrapped)
        other = handle_on(copied).drafter
        assert other is automatic(copied) is not handle.drafter
        assert other.drafter is handle.drafter.drafter is drafter


def test_containers_of_an_enabled_model_are_copied_with_their_handle() -> None:
    model = copy.deepcopy(tiny("llama"))
    holder = {"first": model, "second": [model]}
    with mmspec.enable(model, Locked()) as handle:
        held = copy.deepcopy([handle, holder, handle])
        travelled = unpickled(pickle.dumps([holder, handle]))
    assert held[0] is held[2] is handle_on(held[1]["first"]) and held[1]["second"][0] is held[0].obj is not model
    assert handle_on(travelled[0]["first"]) is None and travelled[1].__self__ is travelled[0]["first"]
    assert copy.deepcopy(handle).closed and copy.copy(handle) is handle


def test_pickles_of_an_enabled_model_are_alike() -> None:
    """Caches compare them, such as that of `datasets`."""
    model = copy.deepcopy(tiny("llama"))
    with mmspec.enable(model, "auto"):
        before = pickle.dumps(model)
        model.generate(**prompt("llama"), max_new_tokens=STEPS)
        assert pickle.dumps(model) == before


def test_a_handle_that_came_along_with_an_attribute_table_does_not_count() -> None:
    model = copy.deepcopy(tiny("llama"))
    with mmspec.enable(model, PromptLookup()) as handle:
        replica = type(model).__new__(type(model))
        vars(replica).update(vars(model))
        assert handle_on(replica) is None
        assert "generate" not in vars(copy.deepcopy(replica)) and "generate" not in vars(copy.copy(replica))
        with mmspec.enable(replica, PromptLookup()) as own:
            assert handle_on(replica) is own and own.original == type(model).generate.__get__(replica)
        assert "generate" not in vars(replica) and handle_on(model) is handle


def test_a_method_that_stood_there_before_travels_in_its_place() -> None:
    model = copy.deepcopy(tiny("llama"))
    model.generate = partial(type(model).generate, model)
    with mmspec.enable(model, PromptLookup()):
        for copied in (unpickled(pickle.dumps(model)), copy.deepcopy(model)):
            handle = handle_on(copied)
            earlier = vars(copied)["generate"] if handle is None else handle.earlier
            assert isinstance(earlier, partial) and earlier.args[0] is copied
        assert handle is not None and copy.copy(model).generate.args[0] is model


def test_copies_of_a_disabled_model_and_of_its_class_are_as_ever() -> None:
    model = copy.deepcopy(tiny("llama"))
    before = pickle.dumps(model)
    mmspec.enable(model).close()
    assert pickle.dumps(model) == before and traces(copy.copy(model)).keys() == traces(model).keys()


def test_a_pipeline_travels_plain_too() -> None:
    pipe = classed()
    expected = pipe([3], seed=1).tokens
    with mmspec.enable(pipe, SJD(window=4)) as handle:
        deep, shallow = copy.deepcopy(pipe), copy.copy(pipe)
        assert handle_on(shallow) is None and "start" not in vars(shallow)
        assert handle_on(deep).obj is deep and handle_on(deep).drafter == SJD(window=4)
        deep([3], seed=1)
        assert handle.summary().calls == 0 and mmspec.summary(deep).calls == 1
    assert torch.equal(shallow([3], seed=1).tokens, expected)
