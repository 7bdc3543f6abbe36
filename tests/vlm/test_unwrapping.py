"""Adapters and other wrappers around a target."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters import PromptLookup, SmallModel
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny


class Adapted(nn.Module):
    """As adapter libraries wrap a model: what it lacks itself is the inner model's."""

    def __init__(self, model: nn.Module, learns_prompt: bool = False):
        super().__init__()
        self.base_model = model
        self.peft_config = {"default": SimpleNamespace(is_prompt_learning=learns_prompt)}
        self.calls = 0

    def get_base_model(self) -> nn.Module:
        return self.base_model

    def __getattr__(self, name: str) -> object:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)


class Calling(Adapted):
    """With a `generate` of its own."""

    def generate(self, **inputs: object) -> Tensor:
        self.calls += 1
        return self.base_model.generate(**inputs)


class Bare(nn.Module):
    """Without one."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.get_base_model = lambda: model


def test_a_drafter_is_loaded_for_the_model_inside(tmp_path: Path) -> None:
    make("msd").save_pretrained(tmp_path)
    model = tiny("llava", dtype=torch.bfloat16)
    for wrapped in (Adapted(model), Adapted(Adapted(model)), torch.compile(model, backend="eager")):
        assert mmspec.vlm.load_drafter(tmp_path, target=wrapped).fc.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("wrap", (Adapted, Calling, Bare))
def test_requests_go_through_the_wrapper_where_it_has_a_generate(wrap: type[nn.Module]) -> None:
    inputs = dict(prompt("llava", images=1), max_new_tokens=8)
    wrapped = wrap(tiny("llava"))
    expected = tiny("llava").generate(**inputs)
    for drafter in (make("msd"), SmallModel(Adapted(tiny("llava")))):
        assert torch.equal(mmspec.generate(wrapped, drafter=drafter, **inputs), expected)
    decoding = mmspec.vlm.start(wrapped, drafter=make("msd"), **inputs)
    decoding.run()
    assert decoding.target.tokens == [expected[0, -8:].tolist()]
    assert wrap is not Calling or wrapped.calls == 3


def test_a_learned_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="adapter that changes layers, such as LoRA, got an adapter that learns"):
        mmspec.generate(Adapted(tiny("llava"), learns_prompt=True), **prompt("llava"), max_new_tokens=4)


def _whole(model: nn.Module) -> None:
    model.model = torch.compile(model.model)


def _decoder(model: nn.Module) -> None:
    model.model.language_model = torch.compile(model.model.language_model)


def _head(model: nn.Module) -> None:
    model.lm_head = torch.compile(model.lm_head)


def _layers(model: nn.Module) -> None:
    layers = model.model.language_model.layers
    for number, layer in enumerate(layers):
        layers[number] = torch.compile(layer)


@pytest.mark.parametrize("compiled", (_whole, _decoder, _head, _layers))
def test_a_model_with_a_compiled_part_is_the_model_that_it_was(compiled: Callable[[nn.Module], None]) -> None:
    inputs = dict(prompt("llava", images=1), max_new_tokens=8)
    expected = tiny("llava").generate(**inputs)
    model = copy.deepcopy(tiny("llava"))
    compiled(model)
    parts = take_apart(model)
    assert parts.trusted and type(parts.decoder).__name__ == "LlamaModel" and type(parts.head) is nn.Linear
    with torch.compiler.set_stance("force_eager"):
        for drafter in (None, make("msd"), PromptLookup()):
            assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs), expected)


def test_gradient_checkpointing_is_refused_where_it_keeps_no_cache_and_only_there() -> None:
    inputs = dict(prompt("llava", images=1), max_new_tokens=8)
    model, expected = copy.deepcopy(tiny("llava")), tiny("llava").generate(**inputs)
    model.gradient_checkpointing_enable()
    for drafter in (None, make("msd")):
        assert torch.equal(mmspec.generate(model.eval(), drafter=drafter, **inputs), expected)
        with pytest.raises(ValueError, match="^model: expected .* gradient checkpointing"):
            mmspec.generate(model.train(), drafter=drafter, **inputs)
    model.gradient_checkpointing_disable()
    assert torch.equal(mmspec.generate(model, drafter=make("msd"), **inputs), expected)  # this class has no dropout


def test_a_small_model_that_keeps_no_cache_is_refused_as_a_drafter() -> None:
    small = copy.deepcopy(tiny("llama")).train()
    small.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="^model: expected .* gradient checkpointing"):
        mmspec.generate(tiny("llama"), drafter=SmallModel(small), **prompt("llama"), max_new_tokens=4)


def test_dynamic_quantisation_depends_on_the_pass_and_is_refused() -> None:
    model = torch.ao.quantization.quantize_dynamic(copy.deepcopy(tiny("llama")), {nn.Linear}, dtype=torch.qint8)
    ids = prompt("llama")["input_ids"]
    alone, longer = (model.model(ids[:, :count]).last_hidden_state[:, :2] for count in (2, ids.shape[1]))
    assert (alone - longer).abs().max() > 1e-3  # a token's result depends on those behind it
    with pytest.raises(ValueError, match="^model: expected .* dynamic quantisation"):
        mmspec.generate(model, drafter=PromptLookup(), **prompt("llama"), max_new_tokens=4)
