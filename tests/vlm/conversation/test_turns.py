"""Three turns about two pictures say what fresh prompts say, and read only what is new."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.vlm.conversation import Past
from tests.vlm.classes.build import skip_broken
from tests.vlm.conversation.talks import Known, counted, talk
from tests.vlm.drafts import SHAPES, continuation
from tests.vlm.layer_kinds import ONCE, model_with, ragged
from tests.vlm.tiny import VLMS

GREEDY = dict(max_new_tokens=10, do_sample=False)
CLASSES = (
    "AyaVisionForConditionalGeneration",
    "Gemma3ForConditionalGeneration:window",
    "Gemma4ForConditionalGeneration",
    "Glm4vForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Molmo2ForConditionalGeneration",
    "PaliGemmaForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
)
# every prompt is read as one, whatever is new
WHOLE = ("PaliGemmaForConditionalGeneration",)
# a later picture is read with everything before it: earlier ones see it
WITH_PICTURES = ("Molmo2ForConditionalGeneration",)


# LLaVA-OneVision reads a picture otherwise where it is not alone, so its first prompt is never the second's beginning
TALKS = [(name, apart) for name in VLMS + CLASSES for apart in (False, True) if not apart or name != "onevision"]
TALKS.append(("MllamaForConditionalGeneration", False))  # whose layers of cross attention keep the pictures
CELLS = [f"{name}-{('together', 'apart')[apart]}" for name, apart in TALKS]
CELLS_OF: dict[str, list[str]] = {}
for (name, _), cell in zip(TALKS, CELLS, strict=True):
    CELLS_OF.setdefault(name, []).append(cell)


# a call a class, of either kind in turn
@pytest.mark.default_cells(*(cells[number % len(cells)] for number, cells in enumerate(CELLS_OF.values())))
@pytest.mark.parametrize("name, apart", TALKS, ids=CELLS)
def test_turns_match_fresh_prompts_and_read_only_new_tokens(name: str, apart: bool) -> None:
    if name.startswith("Mllama") and hf.__version__.startswith("5.13."):
        pytest.skip("transformers 5.13 raises an IndexError for longer answers of Mllama")
    chat = talk(name, apart)
    if name in CLASSES:
        skip_broken(chat.model)
    past, said, held = Past(chat.model), None, 0
    for number in range(3):
        inputs = chat.turn(number, said)
        length = inputs["input_ids"].shape[1]
        truth = chat.model.generate(**inputs, **GREEDY)
        drafter = Known(continuation(truth, length), SHAPES[number], vocab=61)
        with counted(chat.model) as seen:
            out = mmspec.generate(
                chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY, return_dict=True
            )
        assert torch.equal(out.sequences, truth), (number, continuation(out.sequences, length))
        again = name in WHOLE or number == 1 and apart and name in WITH_PICTURES
        assert out.read == (length if again or not number else length - held), number
        if number and not again:
            assert seen["pictures"] == (number == 1 and apart)
        assert past.ids == truth[0].tolist()
        said, held = truth, truth.shape[1] - 1


@pytest.mark.parametrize("name", ONCE)
def test_turns_of_text_on_every_kind_of_layer(name: str) -> None:
    """Turns cross windows and chunks of 8; answers are drafted on trees, and cut in the middle of accepted runs."""
    model = model_with(name)
    past, ids, held = Past(model), ragged((9,), seed=4)["input_ids"], 0
    for number in range(4):
        settings = dict(max_new_tokens=7 + number, do_sample=False)
        truth = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        drafter = Known(continuation(truth, ids.shape[1]), SHAPES[number % 3], vocab=61)
        out = mmspec.generate(model, drafter=drafter, past_key_values=past, input_ids=ids, return_dict=True, **settings)
        assert torch.equal(out.sequences, truth), number
        assert out.read == ids.shape[1] - held
        held = truth.shape[1] - 1
        ids = torch.cat([truth, ragged((5,), seed=number)["input_ids"]], 1)


@pytest.mark.parametrize("name", ("llava", "qwen2_5_vl"))
def test_a_second_turn_costs_less_than_a_tenth(name: str) -> None:
    """Tokens that pass the model for the first word of the second turn, against those of a fresh prompt."""
    chat, settings = talk(name), dict(max_new_tokens=1, do_sample=False)
    whole = torch.cat([torch.randint(5, 60, (1, 60)), chat.inputs["input_ids"]], 1)
    past = Past(chat.model)
    said = mmspec.generate(chat.model, past_key_values=past, **chat.of(whole, 2), **settings)
    inputs = chat.of(torch.cat([said, torch.tensor([[11, 12, 13]])], 1), 2)
    with counted(chat.model) as fresh:
        truth = mmspec.generate(chat.model, **inputs, **settings)
    with counted(chat.model) as seen:
        out = mmspec.generate(chat.model, past_key_values=past, **inputs, **settings)
    assert torch.equal(out, truth)
    assert seen["pictures"] == 0 < fresh["pictures"]
    assert 10 * seen["tokens"] < fresh["tokens"]


@pytest.mark.default_cells("llava", "Qwen3_5ForConditionalGeneration")
@pytest.mark.parametrize("name", ("llava", "qwen3_vl", *CLASSES[1:2], "Qwen3_5ForConditionalGeneration"))
def test_sampled_turns_match_a_fresh_prompt_with_the_same_seed(name: str) -> None:
    chat = talk(name, apart=True)
    settings = dict(max_new_tokens=10, do_sample=True, temperature=0.9, top_k=20)
    for drafter in (None, mmspec.drafters.PromptLookup(), Known([[9, 8, 7, 6, 5] * 4], "static", vocab=61)):
        past, said = Past(chat.model), None
        for number in range(3):
            inputs = chat.turn(number, said)
            truth = mmspec.generate(chat.model, drafter=drafter, seed=number, **inputs, **settings)
            said = mmspec.generate(chat.model, drafter=drafter, seed=number, past_key_values=past, **inputs, **settings)
            assert torch.equal(said, truth), number


def test_alternating_conversations_on_one_model_do_not_interfere() -> None:
    talks = [talk("qwen2_5_vl", apart) for apart in (True, False)]
    pasts, said = [Past(talk.model) for talk in talks], [None, None]
    for number in range(3):
        for which, chat in enumerate(talks):
            inputs = chat.turn(number, said[which])
            truth = chat.model.generate(**inputs, **GREEDY)
            said[which] = mmspec.generate(chat.model, past_key_values=pasts[which], **inputs, **GREEDY)
            assert torch.equal(said[which], truth)


def test_an_enabled_model_and_our_callable_take_the_same_conversation() -> None:
    chat = talk("qwen3_vl", apart=True)
    past, said, reads = Past(chat.model), None, []
    with mmspec.enable(chat.model, mmspec.drafters.PromptLookup()) as handle:
        for number in range(2):
            inputs = chat.turn(number, said)
            truth = mmspec.generate(chat.model, **inputs, **GREEDY)
            with counted(chat.model) as seen:
                said = chat.model.generate(**inputs, past_key_values=past, **GREEDY)
            reads.append(seen["pictures"])
            assert torch.equal(said, truth)
        assert handle.summary().calls == 2
    inputs = chat.turn(2, said)
    truth = chat.model.generate(**inputs, **GREEDY)
    out = chat.model.generate(**inputs, past_key_values=past, custom_generate=mmspec.decode, **GREEDY)
    assert torch.equal(out, truth) and past.ids == truth[0].tolist()
    assert reads == [1, 1]


def test_pictures_of_earlier_turns_may_be_left_out() -> None:
    chat = talk("qwen2_5_vl")
    past = Past(chat.model)
    said = mmspec.generate(chat.model, past_key_values=past, **chat.turn(0, None), **GREEDY)
    inputs = chat.turn(1, said)
    truth = chat.model.generate(**inputs, **GREEDY)
    bare = {name: inputs[name] for name in ("input_ids", "mm_token_type_ids")}
    assert torch.equal(mmspec.generate(chat.model, past_key_values=past, **bare, **GREEDY), truth)
