"""`drafter="auto"`: what is at hand for a model, as long as it pays; the words are the target's."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.core.length.goodput import Goodput
from mmspec.vlm.auto import automatic, offer, offered_drafters
from mmspec.vlm.drafters import PromptLookup
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny


@pytest.fixture
def model():
    """A model of its own: what is offered for it must not stay with the one that tests share."""
    import copy

    return copy.deepcopy(tiny("llava"))


def test_prompt_lookup_is_at_hand_for_any_model(model: torch.nn.Module) -> None:
    assert offered_drafters(model) == (PromptLookup(longest=15),)
    control = automatic(model)
    assert isinstance(control, Goodput) and control is automatic(model) and control is not automatic(tiny("llama"))


@pytest.mark.parametrize("batch", (1, 3))
def test_words_are_plain_decodings(model: torch.nn.Module, batch: int) -> None:
    inputs = prompt("llava", images=1, batch=batch)
    asked = dict(max_new_tokens=24, do_sample=False)
    plain = model.generate(**inputs, **asked)
    for _ in range(3):
        out = mmspec.generate(model, drafter="auto", return_dict=True, **inputs, **asked)
        assert torch.equal(out.sequences, plain) and out.stats.exact
    assert out.stats.drafter == "goodput(prompt_lookup)"
    called = model.generate(**inputs, **asked, custom_generate=mmspec.decode, drafter="auto")
    assert torch.equal(called, plain)


def test_an_offered_drafter_is_built_once_and_drafts(model: torch.nn.Module) -> None:
    made = []

    def drafter():
        made.append(make("msd").with_shape(Chain(FixedLength(4))))
        return made[-1]

    automatic(model)  # of prompt lookup, which what is offered later replaces
    offer(model, drafter)
    assert made == []
    inputs, asked = prompt("llava", images=1), dict(max_new_tokens=24, do_sample=False)
    out = mmspec.generate(model, drafter="auto", return_dict=True, **inputs, **asked)
    assert torch.equal(out.sequences, model.generate(**inputs, **asked))
    assert offered_drafters(model) == automatic(model).drafters == (made[0],) and len(made) == 1
    assert out.stats.drafter == "goodput(msd)"


def test_a_model_that_is_dropped_takes_its_controller_along() -> None:
    import copy

    model = copy.deepcopy(tiny("llama"))
    offer(model, lambda: PromptLookup())
    control, model = weakref.ref(automatic(model)), weakref.ref(model)
    gc.collect()
    assert model() is None and control() is None


def test_the_zoo_offers_its_best_drafter() -> None:
    model, _ = mmspec.zoo.load("vlm")
    (drafter,) = offered_drafters(model)
    assert drafter.kind == "dspark" and drafter.shape_for(False) == Chain(FixedLength(12))


def test_other_words_are_refused(model: torch.nn.Module) -> None:
    with pytest.raises(
        ValueError, match="drafter 'eagle': expected its weights behind @, as in 'eagle@FOLDER', got none"
    ):
        mmspec.generate(model, drafter="eagle", max_new_tokens=2, **prompt("llava", images=1))
