"""Passes with small products: what the modules look like outside, in other threads, under hooks and in compiled modules."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from threading import Barrier, Event, Thread

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mmspec
from mmspec.core.layers.fingerprint import fingerprint
from mmspec.core.layers.small_products import SmallLinear, SmallProducts, modules_within
from mmspec.core.round.user_code import user_code
from mmspec.kernels import small_linear as products
from mmspec.kernels.small_linear import pinned_form
from tests.evaluate.tiny_images import classed
from tests.vlm.tiny import prompt, tiny


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The number of transposed products by their number of rows."""
    counts: Counter[int] = Counter()
    product = products.transposed_product

    def counted(x: Tensor, *rest: Tensor) -> Tensor:
        counts[x.numel() // x.shape[-1]] += 1
        return product(x, *rest)

    monkeypatch.setattr(products, "transposed_product", counted)
    return counts


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 9), nn.GELU(), nn.Sequential(nn.Linear(9, 9, bias=False)), nn.Bilinear(3, 3, 3))


def test_outside_nothing_on_the_modules_differs(ran: Counter[int]) -> None:
    model, x = network(), torch.randn(4, 5)
    before, mark = [dict(vars(part)) for part in model.modules()], fingerprint(model)
    block = SmallProducts(model)
    with block, block:
        out = model[:3](x)
        assert fingerprint(model).same(mark) and not list(user_code(model))
    with pytest.raises(KeyError), block:
        raise KeyError
    assert [dict(vars(part)) for part in model.modules()] == before
    assert ran == {4: 2}
    torch.testing.assert_close(out, model[:3](x))
    assert ran == {4: 2}


def test_one_row_and_many_rows_keep_the_bits_of_linear(ran: Counter[int]) -> None:
    model = network()
    for rows in (1, 65):
        x = torch.randn(rows, 5)
        with SmallProducts(model):
            inside = model[0](x)
        assert torch.equal(inside, model[0](x))
    assert not ran


def test_hooks_and_replaced_weights_count(ran: Counter[int]) -> None:
    layer, x, seen = nn.Linear(5, 9), torch.randn(4, 5), []
    layer.register_forward_hook(lambda module, given, out: seen.append(out) or out + 1)
    layer.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    with SmallProducts(layer):
        layer.weight.data = torch.randn(9, 5)
        torch.testing.assert_close(layer(x), F.linear(2 * x, layer.weight, layer.bias) + 1)
    assert len(seen) == 1 and ran == {4: 1}


def test_a_forward_of_somebody_else_stays() -> None:
    layer, x = nn.Linear(5, 9), torch.randn(4, 5)
    layer.forward = lambda x: x  # as accelerate and adapters do
    with SmallProducts(layer):
        assert layer(x) is x
    assert layer(x) is x


class Scaled(nn.Linear):
    """A linear layer of another class, such as a quantised one."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_layers_of_other_classes_keep_theirs(ran: Counter[int]) -> None:
    layer, x = Scaled(5, 9), torch.randn(4, 5)
    meta, double = nn.Linear(5, 9, device="meta"), nn.Linear(5, 9).double()
    with SmallProducts(nn.ModuleList([layer, meta, double])):
        assert "forward" not in vars(layer) | vars(meta) | vars(double)
        torch.testing.assert_close(layer(x), 2 * F.linear(x, layer.weight, layer.bias))
    assert not ran


def test_compiled_modules_are_left_alone() -> None:
    whole, inside, called = network(), network(), network()
    compiled = torch.compile(whole, backend="eager")
    inside.compile(backend="eager")
    called.forward = torch.compile(called.forward, backend="eager")
    with SmallProducts(compiled, inside, called):
        assert not [
            part for model in (whole, inside, called) for part in model[0:3].modules() if "forward" in vars(part)
        ]


def test_gradients_and_modes_keep_linear(ran: Counter[int]) -> None:
    layer, x = nn.Linear(5, 9), torch.randn(4, 5)
    block = SmallProducts(layer)
    with torch.enable_grad(), block:
        assert layer(x).requires_grad
    with torch.autocast("cpu", torch.bfloat16), block:
        assert layer(x).dtype == torch.bfloat16
    with pinned_form("linear"), block:
        layer(x)
    assert not ran
    with pinned_form("transposed"), block:
        layer(x)
    assert ran == {4: 1}


def test_another_thread_keeps_linear(ran: Counter[int]) -> None:
    layer, x, inside, done = nn.Linear(5, 9), torch.randn(4, 5), Event(), Event()
    others = []

    def other() -> None:
        inside.wait(10)
        with torch.no_grad():
            others.append(layer(x))
        done.set()

    thread = Thread(target=other)
    thread.start()
    with SmallProducts(layer):
        inside.set()
        assert done.wait(10)
        assert not ran
        layer(x)
    thread.join()
    assert ran == {4: 1}
    assert torch.equal(others[0], F.linear(x, layer.weight, layer.bias))


def test_the_first_thread_that_leaves_takes_nothing_from_the_second(ran: Counter[int]) -> None:
    layer, x, both, left = nn.Linear(5, 9), torch.randn(4, 5), Barrier(2), Event()

    def first() -> None:
        with SmallProducts(layer):
            both.wait(10)
        left.set()

    thread = Thread(target=first)
    thread.start()
    with SmallProducts(layer):
        both.wait(10)
        assert left.wait(10)
        layer(x)
    thread.join()
    assert ran == {4: 1} and "forward" not in vars(layer)


def test_a_copy_made_inside_computes_with_its_own_weights() -> None:
    layer, x = nn.Linear(5, 9), torch.randn(4, 5)
    with SmallProducts(layer):
        copied = copy.deepcopy(layer)
        copied.weight.zero_()
        assert torch.equal(copied(x), copied.bias.expand(4, -1))
        assert isinstance(vars(layer)["forward"], SmallLinear)


def test_modules_within_drafters() -> None:
    model = tiny("llama")
    small = mmspec.drafters.SmallModel(model)
    assert model in set(modules_within([mmspec.drafters.PromptLookup(), small]))
    assert not list(modules_within(mmspec.drafters.PromptLookup()))


def test_text_requests_use_it_in_passes_alone(ran: Counter[int]) -> None:
    model, inputs = tiny("llava"), prompt("llava", 1)
    looks = []

    class Looks:
        """A logits processor that looks at the model, which it may also run."""

        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            looks.append([part for part in model.modules() if "forward" in vars(part)])
            return scores

    settings = dict(max_new_tokens=16, do_sample=False, logits_processor=[Looks()])
    plain = mmspec.generate(model, **inputs, **settings)
    assert not ran
    drafted = mmspec.generate(model, drafter=mmspec.drafters.TokenRecycling(), **inputs, **settings)
    assert torch.equal(plain, drafted) and min(ran) > 1
    assert looks and not any(looks)
    ran.clear()
    mmspec.generate(model, drafter=mmspec.drafters.TokenRecycling(), strict=True, **inputs, max_new_tokens=8)
    assert set(ran) == {4, 64}  # the blocks of strict passes over drafts and prompts


def test_batches_of_plain_decoding_use_it(ran: Counter[int]) -> None:
    mmspec.generate(tiny("llama"), **prompt("llama", batch=4), max_new_tokens=4, do_sample=False)
    assert set(ran) == {4}


def test_images_use_it(ran: Counter[int]) -> None:
    pipe = classed()
    pipe([1], decoding="scd:window=4", guidance_scale=2.0, temperature=0.0, seed=0)
    assert ran and all(rows % 2 == 0 for rows in ran)  # two branches
    assert not [part for part in pipe.model.transformer.modules() if "forward" in vars(part)]
