"""The first use of a class through `enable` is its first use through `mmspec.generate`: it proves itself, then drafts."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

import mmspec
from mmspec.vlm import admission
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters import PromptLookup, SmallModel
from mmspec.vlm.hf_model import class_generate
from tests.house.tree import modules
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.classes.pictures import picture_prompt
from tests.vlm.test_proof import SOUND, UNSOUND, made
from tests.vlm.test_unwrapping import Adapted
from tests.vlm.tiny import _DECODER, liven, prompt, tiny

STEPS = 12


class LlamaForCausalLM(hf.LlamaForCausalLM):
    """A class of the user's own, which no list names."""


def subclass() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = LlamaForCausalLM(hf.LlamaConfig(**_DECODER)).eval()
        liven(model)
    return model.requires_grad_(False)


KINDS: dict[str, Callable[[], nn.Module]] = {
    **SOUND,
    "gemma2": lambda: made("Gemma2ForCausalLM", **_DECODER, query_pre_attn_scalar=8),
    "subclass": subclass,
    "wrapped": lambda: Adapted(SOUND["gemma"]()),
    "compiled": lambda: torch.compile(SOUND["gemma"](), backend="eager"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_use_of_an_untested_class_may_be_through_enable(kind: str) -> None:
    model, inputs = KINDS[kind](), dict(prompt("llama", batch=3, seed=3), max_new_tokens=STEPS, do_sample=False)
    expected = KINDS[kind]().generate(**inputs)
    with mmspec.enable(model, PromptLookup()) as handle:
        assert torch.equal(model.generate(**inputs), expected)
    assert handle.summary().calls == 1 and not handle.summary().refused
    assert torch.equal(mmspec.generate(model, **inputs), expected)


def test_pictures_prove_themselves_through_enable() -> None:
    name = "SmolVLMForConditionalGeneration"
    model = model_of(name, config_of(name))
    inputs = dict(picture_prompt(name, model, "rows"), max_new_tokens=STEPS, do_sample=False)
    expected = model.generate(**inputs)
    with mmspec.enable(model, PromptLookup()):
        assert torch.equal(model.generate(**inputs), expected)


def test_a_draft_model_may_be_enabled_itself() -> None:
    small, inputs = SOUND["gemma"](), dict(prompt("llama"), max_new_tokens=STEPS)
    expected = tiny("llama").generate(**inputs)
    with mmspec.enable(small, PromptLookup()) as handle:
        assert torch.equal(mmspec.generate(tiny("llama"), drafter=SmallModel(small), **inputs), expected)
    assert handle.summary().calls == 0


def test_a_trial_that_broke_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, check = SOUND["gemma"](), admission.text_trial

    def broken(parts: object) -> None:
        raise TypeError("of the trial's own")

    monkeypatch.setattr(admission, "text_trial", broken)
    with pytest.raises(ValueError, match="TypeError") as caught:
        take_apart(model)
    assert isinstance(caught.value.__cause__, TypeError)
    monkeypatch.setattr(admission, "text_trial", check)
    assert take_apart(model).model is model


def test_a_difference_that_was_seen_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    model, runs, check = UNSOUND["dynamic mask"][0](), [], admission.text_trial
    monkeypatch.setattr(admission, "text_trial", lambda parts: (runs.append(1), check(parts)))
    for _ in range(2):
        with pytest.raises(ValueError, match="tree of drafts"):
            take_apart(model)
    assert runs == [1]


def test_a_lack_of_memory_is_reported_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(parts: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(admission, "text_trial", full)
    with pytest.raises(torch.OutOfMemoryError):
        take_apart(SOUND["gemma"]())


def test_class_generate_is_found_behind_an_instance_attribute() -> None:
    model = SOUND["gemma"]()
    model.generate = print
    for wrapped in (model, Adapted(model), torch.compile(Adapted(model), backend="eager")):
        method = class_generate(wrapped)
        assert method.__self__ is model and method.__func__ is hf.GemmaForCausalLM.generate
    with pytest.raises(ValueError, match="model: expected a transformers model that generates text, got Linear"):
        class_generate(nn.Linear(2, 2))


def instance_calls(source: str) -> list[str]:
    """Calls of a `generate` that is looked up on an object, which may be a handle."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = [ast.unparse(call) for call in calls if isinstance(call, ast.Attribute) and call.attr == "generate"]
    return [call for call in found if call not in ("mmspec.generate", "self.generate")]


def test_no_module_decodes_through_the_attribute_of_an_object() -> None:
    rooms = ("mmspec.vlm", "mmspec.attach", "mmspec.evaluate", "mmspec.web", "mmspec.cli", "mmspec.zoo.training.vlm")
    paths: dict[str, Path] = {name: path for name, path in modules() if name.startswith(rooms)}
    found = {name: calls for name, path in paths.items() if (calls := instance_calls(path.read_text(encoding="utf-8")))}
    assert len(paths) > 100 and not found
    assert instance_calls("out = parts.model.generate(ids)") == ["parts.model.generate"]
