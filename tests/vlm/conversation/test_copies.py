"""Copies of conversations: the original and its copies go on independently with the text of fresh prompts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.length.goodput import Goodput
from mmspec.vlm import Rounds
from mmspec.vlm.api import start
from mmspec.vlm.conversation import Past
from mmspec.vlm.drafters.viskip import VisionSkip
from tests.vlm.conversation.talks import Talk, talk
from tests.vlm.drafters.trained import NAMES, make
from tests.vlm.layer_kinds import ONCE, model_with, ragged
from tests.vlm.tiny import tiny

GREEDY = dict(max_new_tokens=8, do_sample=False)
COPIES = pytest.mark.parametrize("copied", (copy.deepcopy, copy.copy), ids=("deep", "shallow"))
REQUESTS = ([31, 32, 33], [41, 42, 43, 44, 45], [51, 52])


@COPIES
@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("drafter", (None, mmspec.drafters.PromptLookup()), ids=("plain", "lookup"))
@pytest.mark.parametrize("name", ONCE)
def test_copies_of_text_go_on_independently(name: str, drafter: object, copied: Callable) -> None:
    """A system prompt is shared by two requests, whose answers are continued in turn; windows of 8 are crossed."""
    model, past = model_with(name), None
    past, ids = Past(model), ragged((9,), seed=4)["input_ids"]
    said = mmspec.generate(model, drafter=drafter, past_key_values=past, input_ids=ids, **GREEDY)
    pasts = [past, copied(past), copied(copied(past))]
    check_requests(lambda ids: {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, model, pasts, said, drafter)


@COPIES
@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("apart", (False, True), ids=("together", "apart"))
@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl", "Qwen3_5ForConditionalGeneration"))
def test_copies_about_pictures_go_on_independently(kind: str, apart: bool, copied: Callable) -> None:
    chat = talk(kind, apart)
    past = Past(chat.model)
    said = mmspec.generate(chat.model, past_key_values=past, **chat.turn(0, None), **GREEDY)
    pasts = [past, copied(past), copied(copied(past))]
    check_requests(lambda ids: chat.of(ids, 1 if apart else 2), chat.model, pasts, said, None)


def test_a_copy_before_the_first_turn_reads_the_prompt() -> None:
    chat = talk("llava")
    past = copy.deepcopy(Past(chat.model))
    inputs = chat.turn(0, None)
    said = mmspec.generate(chat.model, past_key_values=past, **inputs, **GREEDY)
    assert torch.equal(said, chat.model.generate(**inputs, **GREEDY))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind, apart", (("llava", False), ("qwen2_5_vl", True)), ids=("together", "apart"))
@pytest.mark.parametrize("name", NAMES)
def test_trained_drafters_go_on_in_every_copy(name: str, kind: str, apart: bool) -> None:
    check_drafter(talk(kind, apart), make(name), follows=name != "moa")  # it reads the whole prompt


@pytest.mark.parametrize("name", ("goodput", "viskip", "merged", "auto", "small", "recycling"))
def test_wrapped_drafters_and_drafters_of_ids_go_on_in_every_copy(name: str) -> None:
    chat = talk("qwen2_5_vl", apart=True)
    drafter = {
        "goodput": lambda: Goodput(make("msd")),
        "viskip": lambda: Goodput(VisionSkip(make("msd"), 0.5)),
        "merged": lambda: mmspec.drafters.Merged(make("eagle")),
        "auto": lambda: "auto",
        "small": lambda: mmspec.drafters.SmallModel(tiny("llama")),
        "recycling": mmspec.drafters.TokenRecycling,
    }[name]()
    check_drafter(chat, drafter)


def check_drafter(chat: Talk, drafter: object, follows: bool = True) -> None:
    past = Past(chat.model)
    said = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **chat.turn(0, None), **GREEDY)
    pasts = [past, copy.deepcopy(past), copy.copy(copy.deepcopy(past))]
    shown = 1 if chat.apart else 2
    check_requests(lambda ids: chat.of(ids, shown), chat.model, pasts, said, drafter, follows)


def check_requests(
    inputs_of: Callable[[Tensor], dict],
    model: object,
    pasts: list[Past],
    said: Tensor,
    drafter: object,
    follows: bool = True,
) -> None:
    """Continue every conversation twice in turn, and compare with fresh prompts; only new tokens are read."""
    texts = [said] * len(pasts)
    for turn in range(2):
        for number, past in enumerate(pasts):
            ids = torch.cat([texts[number], torch.tensor([REQUESTS[number - turn]])], 1)
            inputs, held = inputs_of(ids), past.held
            out = mmspec.generate(model, drafter=drafter, past_key_values=past, **inputs, **GREEDY, return_dict=True)
            texts[number] = out.sequences
            assert torch.equal(out.sequences, model.generate(**inputs, **GREEDY)), (turn, number)
            assert past.ids == out.sequences[0].tolist()
            assert out.read == ids.shape[1] - held * follows


def test_copies_share_the_drafter_and_no_weights() -> None:
    chat, drafter = talk("llava"), make("msd")
    past = Past(chat.model)
    mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **chat.turn(0, None), **GREEDY)
    other = copy.deepcopy({"past": past})["past"]
    assert other.drafter is drafter and other.state is not past.state and other.state.drafter is past.state.drafter
    addresses = {tensor.data_ptr() for tensor in past.cache.at(0)}
    assert not addresses & {tensor.data_ptr() for tensor in other.cache.at(0)}
    assert other.cache.layers[0].cache is other.cache and past.cache.layers[0].cache is past.cache


@COPIES
def test_sessions_share_the_model_and_go_on_independently(copied: Callable) -> None:
    model, processor = mmspec.zoo.load("vlm")
    session = mmspec.Session(model, processor, drafter=mmspec.drafters.PromptLookup(), **GREEDY)
    session.add("Answer briefly.", role="system") if "system" in (processor.chat_template or "") else None
    first = session.ask("Say something.")
    other = copied(session)
    assert other.model is model and other.processor is processor and other.drafter is session.drafter
    answer = other.ask("And now?")
    assert other.last.read < other.last.sequences.shape[1] - 8
    assert [message["role"] for message in session.messages][-1] == "assistant" and len(session.messages) == 2
    assert session.messages[-1]["content"][0]["text"] == first
    assert session.ask("And now?") == answer
    session.remove_last_message()
    assert len(other.messages) == 4


def test_requests_in_flight_and_pickles_are_refused_in_a_sentence() -> None:
    model, ids = tiny("llama"), torch.tensor([[5, 6, 7]])
    run = start(model, input_ids=ids, **GREEDY)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ValueError, match="DecodingRun: .* begin another request"):
            copied(run)
    with pytest.raises(ValueError, match="past_key_values: .* conversation"):
        pickle.dumps(Past(model))
    past = Past(model)
    past.busy = True
    with pytest.raises(ValueError, match="past_key_values: expected an idle conversation"):
        copy.deepcopy(past)


def through_pickle(rounds: Rounds) -> Rounds:
    return pickle.loads(pickle.dumps(rounds))  # noqa: S301


@pytest.mark.parametrize("copied", (copy.copy, copy.deepcopy, through_pickle))
def test_copies_of_rounds_share_no_graph_slots(copied: Callable) -> None:
    rounds = Rounds(most=3, late=1)
    rounds._waiting.append(("kind", None))
    other = copied(rounds)
    assert (other.most, other.record, other.late) == (3, rounds.record, 1) and not other._waiting
