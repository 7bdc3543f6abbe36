"""A fingerprint differs exactly where a model has become another function, as far as it promises to see it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mmspec.core.layers.fingerprint import fingerprint, layout_of, modules_of


class Gate(nn.Module):
    """A module with settings of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).view(3, 4))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("table", torch.zeros(2, 2), persistent=False)
        self.scaling, self.active_adapter, self.names = {"a": 1.0}, ["a"], ("a", "b")
        self.last: Tensor | None = None


def made() -> nn.Module:
    return nn.Sequential(Gate(), nn.Linear(4, 600), nn.BatchNorm1d(600)).eval()


def set_on(path: str, value: object) -> Callable[[nn.Module], None]:
    return lambda model: setattr(model[0], path, value)


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "copy": lambda m: m[1].weight.detach().copy_(m[1].weight.detach() + 1),
    "data": lambda m: m[1].weight.data.add_(1),
    "data of the last rows": lambda m: m[1].weight.data[-100:].add_(1),
    "assigned data": lambda m: setattr(m[1].weight, "data", m[1].weight.data.clone()),
    "loaded": lambda m: m.load_state_dict({n: weight + 1 for n, weight in m.state_dict().items()}),
    "assigned": lambda m: m.load_state_dict({n: weight.clone() for n, weight in m.state_dict().items()}, assign=True),
    "a buffer": lambda m: m[0].mean.add_(1),
    "a buffer that is not saved": lambda m: m[0].table.add_(1),
    "running statistics": lambda m: m[2].train()(torch.randn(8, 600)) is not None and m.eval(),
    "a new module": lambda m: m.__setitem__(1, nn.Linear(4, 600).eval()),
    "a module without weights": lambda m: m.append(nn.ReLU()),
    "another class": lambda m: (
        m.__setitem__(0, copy.deepcopy(m[0])) or setattr(m[0], "__class__", type("G", (Gate,), {}))
    ),
    "precision": lambda m: m.half(),
    "NaN": lambda m: m[1].bias.data.fill_(torch.nan),
    "training": lambda m: m.train(),
    "an adapter": set_on("active_adapter", ["b"]),
    "a scale": set_on("scaling", {"a": 2.0}),
    "a name": set_on("names", ("a", "c")),
    "a new setting": set_on("strength", 3),
}
LAYOUTS = {
    "a new module": False,
    "a module without weights": True,
    "another class": True,
    "precision": True,
    "training": True,
    "an adapter": True,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_shows(name: str) -> None:
    model = made()
    with torch.no_grad():
        before, layout = fingerprint(model), layout_of(model)
        assert before.same(fingerprint(model)) and layout == layout_of(model)
        CHANGES[name](model)
        now = fingerprint(model)
    assert not now.same(before) and not before.same(now) and now.same(fingerprint(model))
    assert (layout_of(model) != layout) == LAYOUTS.get(name, False)
    assert hash(layout_of(model)) == hash(now.layout)


STILL: dict[str, Callable[[nn.Module], object]] = {
    "a pass": lambda m: m[1](torch.ones(2, 4)),
    "gradients": lambda m: m[1](torch.ones(2, 4)).sum().backward(),
    "requires_grad": lambda m: m.requires_grad_(False),
    "a tensor where none was": set_on("last", torch.ones(3)),
    "a hook": lambda m: m.register_forward_hook(lambda *args: None),
    "eval again": lambda m: m.eval(),
}


@pytest.mark.parametrize("name", STILL)
def test_changes_without_effect_leave_the_fingerprint_unchanged(name: str) -> None:
    model = made()
    before = fingerprint(model)
    STILL[name](model)
    assert fingerprint(model).same(before)


def test_weights_in_place_move_no_recorded_graph() -> None:
    model = made()
    before = fingerprint(model).places
    model.load_state_dict({n: weight + 1 for n, weight in model.state_dict().items()})
    assert fingerprint(model).places == before
    model.load_state_dict({n: weight.clone() for n, weight in model.state_dict().items()}, assign=True)
    assert fingerprint(model).places != before


class Wrapped(Tensor):
    """A tensor that holds its values in another one, as shards and quantised weights do."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor):
        self.part = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["part"], None

    @classmethod
    def __torch_dispatch__(cls, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        raise AssertionError(f"{func}: a wrapper is not computed with")


@pytest.mark.parametrize(
    "weight",
    (torch.zeros(5, 7).t(), torch.zeros(3, 1).expand(3, 4), torch.zeros(()), torch.zeros(0, 3), torch.ones(4) > 0,
     torch.zeros(4, dtype=torch.complex64), torch.zeros(9, dtype=torch.float8_e4m3fn), torch.zeros(6, 6)[::2, ::3],
     torch.zeros(3, device="meta"), torch.zeros(3, 3).to_sparse(), Wrapped(torch.zeros(3))),
    ids=("transposed", "expanded", "number", "empty", "bool", "complex", "float8", "strided", "meta", "sparse", "wrapper"),
)  # fmt: skip
def test_tensors_of_every_kind_are_supported(weight: Tensor) -> None:
    module = nn.Module()
    module.register_buffer("weight", weight)
    before = fingerprint(module)
    assert before.same(fingerprint(module))
    if not (weight.is_meta or weight.is_sparse or not weight.numel()):
        inner = getattr(weight, "part", weight)
        inner.data.fill_(0 if weight.dtype is torch.bool else 1) if inner.is_contiguous() else inner.data[:1].fill_(1)
        assert not before.same(fingerprint(module))


def test_inference_tensors_are_supported() -> None:
    with torch.inference_mode():
        module = nn.Linear(3, 3)
    before = fingerprint(module)
    assert before.same(fingerprint(module))
    with torch.inference_mode():
        module.weight.add_(1)
    assert not before.same(fingerprint(module))


def test_the_modules_of_a_drafter_are_those_that_it_and_the_drafters_inside_it_hold() -> None:
    class Holder:
        __slots__ = ("drafter", "model")

        def __init__(self, drafter: object, model: object):
            self.drafter, self.model = drafter, model

    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    assert modules_of(first) == (first,) and modules_of(None) == () and modules_of(object()) == ()
    assert modules_of(Holder(None, first)) == (first,)
    assert set(modules_of(Holder(Holder(None, first), second))) == {first, second}
    assert modules_of(Holder(first, None)) == (first,)
