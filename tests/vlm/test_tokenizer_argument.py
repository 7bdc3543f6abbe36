"""`tokenizer=` beside a request: stop strings from wherever they are set, and token healing."""

from __future__ import annotations

from copy import copy, deepcopy
from functools import partial
from inspect import signature

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

import mmspec
from mmspec.vlm.conversation import Past
from mmspec.vlm.drafters import PromptLookup, SmallModel
from tests.vlm.doors import DOORS, call_through
from tests.vlm.drafts import Scripted, continuation
from tests.vlm.tiny import VOCAB, prompt, tiny, words

STEPS = 24


def with_defaults(model: nn.Module, **settings: object) -> nn.Module:
    """The same modules under generation settings of their own."""
    twin = copy(model)
    twin.generation_config = deepcopy(model.generation_config)
    twin.generation_config.update(**settings)
    return twin


def stopped() -> tuple[dict, list[str]]:
    """A ragged batch, and strings at which its rows stop early."""
    inputs = prompt("llama", batch=4, seed=15)
    plain = tiny("llama").generate(**inputs, max_new_tokens=STEPS)
    rows = continuation(plain, inputs["input_ids"].shape[1])
    return inputs, [words().decode(row[5 + i : 7 + i]) for i, row in enumerate(rows)]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("where", ("argument", "config", "model"))
@pytest.mark.parametrize("door", DOORS)
def test_stop_strings_from_anywhere(door: str, where: str) -> None:
    inputs, strings = stopped()
    model, settings = tiny("llama"), dict(max_new_tokens=STEPS, eos_token_id=3)
    if where == "argument":
        settings["stop_strings"] = strings
    elif where == "config":
        settings = {"generation_config": hf.GenerationConfig(**settings, pad_token_id=0, stop_strings=strings)}
    else:
        model = with_defaults(model, stop_strings=strings)
    expected = model.generate(**inputs, **settings, tokenizer=words())
    assert expected.shape[1] < inputs["input_ids"].shape[1] + STEPS
    truth = continuation(expected, inputs["input_ids"].shape[1])
    for drafter in (None, Scripted(truth), SmallModel(model)):
        found = call_through(door, model, drafter=drafter, **inputs, **settings, tokenizer=words())
        assert torch.equal(found, expected)


def test_stop_strings_through_a_bound_callable() -> None:
    inputs, strings = stopped()
    settings = dict(inputs, max_new_tokens=STEPS, eos_token_id=3, stop_strings=strings, tokenizer=words())
    expected = tiny("llama").generate(**settings)
    bound = partial(mmspec.decode, drafter=PromptLookup())
    assert torch.equal(tiny("llama").generate(**settings, custom_generate=bound), expected)
    assert "tokenizer" in signature(mmspec.decode).parameters


@pytest.mark.parametrize("where", ("argument", "config", "model"))
@pytest.mark.parametrize("door", DOORS)
def test_stop_strings_without_a_tokenizer(door: str, where: str) -> None:
    model, settings = tiny("llama"), dict(max_new_tokens=4)
    if where == "argument":
        settings["stop_strings"] = ["a"]
    elif where == "config":
        settings = {"generation_config": hf.GenerationConfig(**settings, stop_strings=["a"])}
    else:
        model = with_defaults(model, stop_strings=["a"])
    with pytest.raises(ValueError, match="tokenizer"):
        call_through(door, model, **prompt("llama"), **settings)


def test_a_class_proves_itself_beside_stop_strings() -> None:
    config = hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=None)
    torch.manual_seed(0)
    model = with_defaults(hf.GPT2LMHeadModel(config).eval(), stop_strings=["w7 w7"], pad_token_id=0)
    settings = dict(prompt("llama"), max_new_tokens=8, tokenizer=words())
    expected = model.generate(**settings)
    assert torch.equal(mmspec.generate(model, drafter=PromptLookup(), **settings), expected)


def healing_words() -> hf.PreTrainedTokenizerFast:
    """As `words`, with a token that begins texts, which healing needs."""
    vocabulary = {"<pad>": 0, "<bos>": 1} | {f"w{i}": i for i in range(2, VOCAB)}
    splitter = Tokenizer(models.WordLevel(vocabulary, unk_token="w4"))
    splitter.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(tokenizer_object=splitter, pad_token="<pad>", bos_token="<bos>")


@pytest.mark.parametrize("door", DOORS)
def test_token_healing(door: str) -> None:
    model, ids = tiny("llama"), torch.tensor([[31, 44, 52, 7], [16, 27, 38, 8]])
    settings = dict(input_ids=ids, max_new_tokens=12, token_healing=True, tokenizer=healing_words())
    expected = model.generate(**settings)
    assert (expected[:, 3] != ids[:, 3]).any()  # something was healed
    for drafter in (None, Scripted(continuation(expected, 4)), PromptLookup(), SmallModel(model)):
        found = call_through(door, model, drafter=drafter, **settings)
        assert torch.equal(found, expected)
    accepted = mmspec.generate(model, drafter=SmallModel(model), return_dict=True, **settings).stats
    assert accepted.target_passes < 12  # the drafter read the healed prompt, too


def test_token_healing_in_a_conversation_is_refused() -> None:
    model = tiny("llama")
    with pytest.raises(ValueError, match="token_healing: expected"):
        mmspec.generate(
            model,
            input_ids=torch.tensor([[31, 44, 52, 7]]),
            past_key_values=Past(model),
            max_new_tokens=4,
            token_healing=True,
            tokenizer=healing_words(),
        )
