"""Adapters and other wrappers around a target."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.vlm.drafters import SmallModel
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
    with pytest.raises(ValueError, match="expected an adapter that changes layers, such as LoRA, got one that learns"):
        mmspec.generate(Adapted(tiny("llava"), learns_prompt=True), **prompt("llava"), max_new_tokens=4)
