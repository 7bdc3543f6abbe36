"""Taken apart, a target's decoder puts out what its head reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mmspec
from mmspec.vlm import architectures
from mmspec.vlm.api import start
from mmspec.vlm.drafters.drafter_names import new_drafter
from tests.vlm.classes.build import config_of, model_of, skip_broken
from tests.vlm.classes.pictures import picture_prompt

GREEDY = dict(max_new_tokens=8, do_sample=False)
# classes whose `get_decoder` gives a model that ends in the head
HEADED = ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")


def prompt_of(name: str, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    if name.endswith("ForCausalLM"):
        return {"input_ids": torch.arange(5, 17)[None]}
    return picture_prompt(name, model, "pictures")


@pytest.mark.parametrize("name", (*HEADED, "Gemma3ForConditionalGeneration", "InternVLForConditionalGeneration"))
def test_a_prompt_leaves_the_states_of_all_its_tokens(name: str) -> None:
    model = model_of(name, config_of(name))
    skip_broken(model)
    inputs = prompt_of(name, model)
    target = start(model, **inputs, **GREEDY).target
    _, evidence = target.prefill()
    assert target.prompt_hidden.shape == (*inputs["input_ids"].shape, target.parts.hidden_size)
    assert torch.allclose(target.parts.head(target.prompt_hidden[:, -1:]), evidence.scores, atol=1e-4)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind", ("msd", "eagle3"))
@pytest.mark.parametrize("name", HEADED)
def test_drafters_that_read_states_serve_decoders_that_end_in_the_head(name: str, kind: str) -> None:
    model = model_of(name, config_of(name))
    skip_broken(model)
    inputs, drafter = prompt_of(name, model), new_drafter(kind, model)
    assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, **GREEDY), model.generate(**inputs, **GREEDY))


def test_logits_in_the_place_of_states_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("Llama4ForCausalLM", config_of("Llama4ForCausalLM"))
    parts = architectures.parts_of(model)
    target = start(model, **prompt_of("Llama4ForCausalLM", model), **GREEDY).target
    target.parts = replace(parts, decoder=model)
    target.prefill()
    assert target.prompt_hidden.shape[1:] == (1, parts.vocab_size)
