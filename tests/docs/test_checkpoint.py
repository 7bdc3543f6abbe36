"""A checkpoint whose `custom_generate/generate.py` is the one that the page shows drafts in any program that loads it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from threading import Thread

import pytest
import torch
import transformers as hf
from torch import nn

import mmspec
from mmspec.vlm.auto import automatic
from mmspec.vlm.drafters import PromptLookup
from tests.docs.examples import EXAMPLES
from tests.vlm.test_proof import SOUND
from tests.vlm.tiny import prompt, tiny

STEPS = 10


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny saved model with the file of the page. transformers copies such code to a folder of its own."""
    monkeypatch.setattr(hf.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        monkeypatch.delitem(sys.modules, name)
    place = tmp_path / "checkpoint"
    tiny("llama").save_pretrained(place)
    (place / "custom_generate").mkdir()
    shutil.copy(EXAMPLES / "checkpoint_generate.py", place / "custom_generate" / "generate.py")
    yield place
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


def rounds(model: nn.Module) -> int:
    """Rounds that the controller of a model has counted so far."""
    return sum(sum(kind["rounds"].values()) for kind in automatic(model).summary())


def test_a_call_that_names_the_folder_drafts(folder: Path) -> None:
    model, inputs = hf.LlamaForCausalLM.from_pretrained(folder), dict(prompt("llama"), max_new_tokens=STEPS)
    expected, seen = model.generate(**inputs), []
    named = dict(custom_generate=str(folder), trust_remote_code=True)
    assert torch.equal(model.generate(**inputs, **named), expected) and rounds(model)
    assert torch.equal(model.generate(inputs["input_ids"], max_new_tokens=STEPS, **named), expected)
    settings = dict(
        generation_config=hf.GenerationConfig(max_new_tokens=STEPS, pad_token_id=0),
        stopping_criteria=hf.StoppingCriteriaList([lambda ids, scores: seen.append(1) or torch.tensor([False])]),
        logits_processor=hf.LogitsProcessorList([lambda ids, scores: scores.roll(1, -1)]),
    )
    assert torch.equal(
        model.generate(**prompt("llama"), **settings, **named), model.generate(**prompt("llama"), **settings)
    )
    assert seen
    with mmspec.enable(model, PromptLookup()):
        assert torch.equal(model.generate(**inputs, **named), expected)


def test_a_model_loaded_with_its_file_drafts_in_every_call(folder: Path) -> None:
    plain = hf.LlamaForCausalLM.from_pretrained(folder)
    model = hf.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    inputs = dict(prompt("llama"), max_new_tokens=STEPS)
    expected = plain.generate(**inputs)
    assert "generate" in vars(model) and torch.equal(model.generate(**inputs), expected) and rounds(model)
    assert torch.equal(model.generate(inputs["input_ids"], max_new_tokens=STEPS), expected)
    assert torch.equal(mmspec.generate(model, **inputs), expected)
    with mmspec.enable(model, PromptLookup()) as handle:
        assert torch.equal(model.generate(**inputs), expected) and handle.summary().calls == 1
    assert torch.equal(model.generate(**inputs), expected)


def test_a_class_that_requires_a_proof_is_accepted(folder: Path) -> None:
    SOUND["gemma"]().save_pretrained(folder)
    plain, model = (hf.GemmaForCausalLM.from_pretrained(folder, trust_remote_code=trusted) for trusted in (False, True))
    inputs = dict(prompt("llama", batch=2, seed=3), max_new_tokens=STEPS)
    assert torch.equal(model.generate(**inputs), plain.generate(**inputs))


def test_a_streamer_is_served(folder: Path) -> None:
    """As `transformers serve` calls it."""
    model = hf.LlamaForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokens: list[int] = []

    class Streamer(hf.generation.BaseStreamer):
        def put(self, value: torch.Tensor) -> None:
            tokens.extend(value.flatten().tolist())

        def end(self) -> None:
            tokens.append(-1)

    asked = dict(prompt("llama"), generation_config=model.generation_config, tokenizer=object(), streamer=Streamer())
    thread = Thread(target=model.generate, kwargs=dict(asked, max_new_tokens=STEPS))
    thread.start()
    thread.join()
    assert tokens == [*tiny("llama").generate(**prompt("llama"), max_new_tokens=STEPS)[0].tolist(), -1]


def test_generate_refuses_a_custom_generate_of_its_own() -> None:
    with pytest.raises(ValueError, match="custom_generate: expected none"):
        mmspec.generate(tiny("llama"), **prompt("llama"), custom_generate=mmspec.decode)
