"""Prompts as embeddings without ids: plain decoding and lookups in the answer give the tokens of transformers."""

from __future__ import annotations

from inspect import signature

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import mmspec
from mmspec.core.length.goodput import Goodput
from mmspec.vlm.drafters import PromptLookup
from tests.vlm.doors import DOORS, call_through
from tests.vlm.drafters.trained import make
from tests.vlm.layer_kinds import ONCE, model_with, ragged
from tests.vlm.tiny import VOCAB, tiny

GREEDY = dict(max_new_tokens=24, do_sample=False)


def embedded(model: nn.Module, lengths: tuple[int, ...] = (9,)) -> dict[str, Tensor]:
    """The embeddings of a left padded batch, and its mask."""
    inputs = ragged(lengths, seed=4)
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    return {"inputs_embeds": embeds, "attention_mask": inputs["attention_mask"]}


@pytest.mark.parametrize("drafter", (None, PromptLookup(longest=4)), ids=("plain", "lookup"))
@pytest.mark.parametrize("name", ONCE)
def test_every_kind_of_layer_reads_embeddings(name: str, drafter: object) -> None:
    model = model_with(name)
    inputs = embedded(model)
    if "inputs_embeds" not in signature(model.prepare_inputs_for_generation).parameters:
        with pytest.raises(ValueError, match="inputs_embeds"):  # transformers refuses them for this class
            mmspec.generate(model, drafter=drafter, **inputs, **GREEDY)
        return
    truth = model.generate(**inputs, **GREEDY)
    out = mmspec.generate(model, drafter=drafter, **inputs, **GREEDY, return_dict=True)
    assert torch.equal(out.sequences, truth) and out.sequences.shape[1] == 24 and out.read == 9


@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl", "llama"))
@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_padded_rows_of_embeddings(door: str, kind: str) -> None:
    """Returned scores and caches too."""
    model = tiny(kind)
    settings = embedded(model, (9, 4, 7)) | GREEDY | dict(return_dict_in_generate=True, output_scores=True)
    truth = model.generate(**settings)
    out = call_through(door, model, drafter=PromptLookup(), **settings)
    assert torch.equal(out.sequences, truth.sequences)
    assert out.past_key_values.get_seq_length() == truth.past_key_values.get_seq_length() == 9 + 23
    for ours, theirs in zip(out.scores, truth.scores, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_processors_and_limits_see_the_answer_alone() -> None:
    model = tiny("llama")
    inputs = embedded(model)
    first = int(model.generate(**inputs, **GREEDY)[0, 0])
    for changed in (
        dict(repetition_penalty=1.5, no_repeat_ngram_size=2),
        dict(min_new_tokens=4, eos_token_id=[first]),
        dict(max_new_tokens=None, max_length=20),
        dict(bad_words_ids=[[first]], repetition_penalty=1.3),
    ):
        settings = inputs | GREEDY | changed
        truth = model.generate(**settings)
        assert torch.equal(mmspec.generate(model, drafter=PromptLookup(), **settings), truth), changed


@pytest.mark.parametrize("drafter", ("suffix", "recycling", "stand", "aded", "auto", "goodput", "capture", "strict"))
def test_drafters_of_ids_draft_from_the_answer(drafter: str) -> None:
    model = tiny("llama")
    inputs = embedded(model)
    truth = model.generate(**inputs, **GREEDY)
    made = {"goodput": Goodput(PromptLookup()), "capture": None, "strict": PromptLookup()}.get(drafter, drafter)
    settings = {drafter: True} if drafter in ("capture", "strict") else {}
    assert torch.equal(mmspec.generate(model, drafter=made, **settings, **inputs, **GREEDY), truth)


@pytest.mark.parametrize("name", ("trained", "few ids", "nothing", "own processor", "conversation"))
def test_what_needs_the_ids_is_refused_in_a_sentence(name: str) -> None:
    model = tiny("llava" if name == "trained" else "llama")
    inputs, word, settings = embedded(model), "drafter", {}
    if name == "trained":
        settings = {"drafter": make("msd")}
    elif name == "few ids":
        word, inputs = "input_ids", inputs | {"input_ids": torch.full((1, 3), 7)}
    elif name == "nothing":
        word, inputs = "input_ids", {"input_ids": torch.zeros(1, 0, dtype=torch.long)}
    elif name == "own processor":
        word, settings = "logits_processor", {"logits_processor": [lambda ids, scores: scores]}
    else:
        word, settings = "input_ids", {"past_key_values": mmspec.vlm.conversation.Past(model)}
    with pytest.raises(ValueError, match=f"{word}: expected") as caught:
        mmspec.generate(model, **settings, **inputs, **GREEDY)
    assert "\n" not in str(caught.value)


def test_embeddings_beside_ids_serve_every_drafter() -> None:
    model, ids = tiny("llama"), torch.arange(5, 17)[None]
    inputs = {"input_ids": ids, "inputs_embeds": model.get_input_embeddings()(ids), "attention_mask": ids * 0 + 1}
    truth = model.generate(**inputs, **GREEDY)
    assert truth.shape[1] == 36 and int(truth.max()) < VOCAB
    assert torch.equal(mmspec.generate(model, drafter=PromptLookup(), **inputs, **GREEDY), truth)


def test_a_class_outside_the_tests_proves_itself_on_embeddings_and_names_token_types() -> None:
    """GPT-2 adds an embedding of `token_type_ids` to every token, also to those that it generates."""
    config = hf.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=None, pad_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = hf.GPT2LMHeadModel(config).eval().requires_grad_(False)
    ids = torch.arange(5, 17)[None]
    inputs = {"inputs_embeds": model.get_input_embeddings()(ids)}
    truth = model.generate(**inputs, **GREEDY)
    assert torch.equal(mmspec.generate(model, drafter=PromptLookup(), **inputs, **GREEDY), truth)
    with pytest.raises(ValueError, match="leave token_type_ids out") as caught:
        mmspec.generate(model, drafter=PromptLookup(), input_ids=ids, token_type_ids=torch.ones_like(ids), **GREEDY)
    assert "\n" not in str(caught.value) and str(caught.value).count("token_type_ids") == 2
