"""Requests that cannot be served: impossible numbers, no rows, nothing left to draw, no position left."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList

import mmspec
from mmspec.vlm.drafters import PromptLookup
from tests.vlm.drafters.trained import make
from tests.vlm.drafts import SHAPES, Bigram, Scripted, continuation
from tests.vlm.tiny import PAD, VOCAB, prompt, tiny

NAN = float("nan")
IDS = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]])


def through_transformers(model: nn.Module, **inputs: object) -> Tensor:
    return model.generate(**inputs, custom_generate=mmspec.decode)


@pytest.mark.parametrize("generate", (mmspec.generate, mmspec.vlm.start, through_transformers))
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (dict(max_new_tokens=10.0), "max_new_tokens: expected a whole number, got 10.0"),
        (dict(max_new_tokens=1.5), "max_new_tokens: expected a whole number, got 1.5"),
        (dict(max_length=12.5), "max_length: expected a whole number, got 12.5"),
        (dict(min_new_tokens=2.5, max_new_tokens=4), "min_new_tokens: expected a whole number, got 2.5"),
        (dict(top_p=NAN, do_sample=True), "top_p: expected a number, got nan"),
        (dict(typical_p=NAN, do_sample=True), "typical_p: expected a number, got nan"),
        (dict(max_time=NAN), "max_time: expected a number, got nan"),
        (dict(input_ids=IDS[:0]), "input_ids: expected at least one row, got a batch of none"),
    ],
    ids=str,
)
def test_numbers_that_are_none_and_batches_without_rows(generate: Callable, settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        generate(tiny("llama"), **dict(input_ids=IDS) | settings)


def test_a_count_in_words_is_refused_before_transformers_compares_it() -> None:
    with pytest.raises(ValueError, match="max_new_tokens: expected a whole number, got '3'"):
        mmspec.generate(tiny("llama"), input_ids=IDS, max_new_tokens="3")


def test_counts_of_other_integer_types_are_accepted() -> None:
    for count in (torch.tensor(3), True + 2):
        assert mmspec.generate(tiny("llama"), input_ids=IDS, max_new_tokens=count).shape == (1, 11)


class Nothing(LogitsProcessor):
    """Rules out every token of some rows once a row has `length` ids."""

    def __init__(self, length: int, row: int | None = None):
        self.length, self.row = length, row

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] < self.length:
            return scores
        rows = torch.arange(len(scores)) == (torch.arange(len(scores)) if self.row is None else self.row)
        return scores.masked_fill(rows[:, None], -torch.inf)


TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))
DRAFTERS = {
    "none": lambda: None,
    "lookup": PromptLookup,
    "chain": lambda: Bigram(TABLE),
    "tree": lambda: Bigram(TABLE, (0, 0, 1)),
    "trained": lambda: make("msd"),
}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("count", (0, 3))
def test_a_sampled_row_with_nothing_to_draw_fails_and_leaves_the_others_alone(count: int, drafter: str) -> None:
    inputs = prompt("llava", images=1, batch=4)
    first = inputs["input_ids"].shape[1]
    settings = dict(drafter=DRAFTERS[drafter](), max_new_tokens=8, do_sample=True, seed=[1, 2, 3, 4], return_dict=True)
    whole = mmspec.generate(tiny("llava"), **inputs, **settings, logits_processor=LogitsProcessorList([Nothing(10**6)]))
    ruled = LogitsProcessorList([Nothing(first + count, row=2)])
    found = mmspec.generate(tiny("llava"), **inputs, **settings, logits_processor=ruled)
    assert whole.errors is None and list(found.errors) == [2]
    assert found.errors[2].startswith("row 2: expected a token to draw, got all tokens ruled out")
    assert f"after {count} generated tokens" in found.errors[2]
    expected = whole.sequences.clone()
    expected[2, first + count :] = PAD
    assert torch.equal(found.sequences, expected)


def test_without_return_dict_an_error_is_raised_where_transformers_raises() -> None:
    settings = dict(input_ids=IDS, do_sample=True, max_new_tokens=6, suppress_tokens=list(range(VOCAB)))
    with pytest.raises(RuntimeError):
        tiny("llama").generate(**settings)
    for generate in (mmspec.generate, through_transformers):
        with pytest.raises(ValueError, match="row 0: expected a token to draw, got all tokens ruled out"):
            generate(tiny("llama"), **settings)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_greedy_row_with_nothing_to_choose_goes_on_as_in_transformers(shape: str) -> None:
    settings = dict(input_ids=IDS, max_new_tokens=8, logits_processor=LogitsProcessorList([Nothing(11)]))
    expected = tiny("llama").generate(**settings)
    for drafter in (None, PromptLookup(), Scripted([expected[0, 8:].tolist()], shape)):
        assert torch.equal(mmspec.generate(tiny("llama"), drafter=drafter, **settings), expected)


def opt(positions: int = 32) -> nn.Module:
    """A model with a learned table of positions."""
    config = hf.OPTConfig(
        vocab_size=VOCAB,
        max_position_embeddings=positions,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=48,
        word_embed_proj_dim=32,
        pad_token_id=PAD,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return hf.OPTForCausalLM(config).eval()


def test_a_learned_table_of_positions_has_an_end() -> None:
    model = opt()
    long = torch.randint(5, 90, (1, 40))
    with pytest.raises(ValueError, match="expected a prompt of at most 32 tokens, the positions of this model, got 40"):
        mmspec.generate(model, input_ids=long, max_new_tokens=1)
    with pytest.raises(ValueError, match="max_new_tokens: expected at most 3 after a prompt of 30 tokens.*got 8"):
        mmspec.generate(model, input_ids=long[:, :30], max_new_tokens=8)
    padded = torch.cat([torch.full((1, 10), PAD), long[:, :30]], 1)
    out = mmspec.generate(model, input_ids=padded, attention_mask=(padded != PAD).long(), max_new_tokens=3)
    assert out.shape == (1, 43)


def test_drafts_may_look_beyond_the_last_position_of_a_table() -> None:
    model = opt()
    ids = torch.tensor([[5, 6, 7] * 6, [PAD] * 12 + [5, 6, 7] * 2, [PAD] * 6 + [8, 9] * 6])
    settings = dict(input_ids=ids, attention_mask=(ids != PAD).long(), max_new_tokens=32 + 1 - 18)
    expected = model.generate(**settings)
    for drafter in (None, PromptLookup(), *(Scripted(continuation(expected, 18), shape) for shape in SHAPES)):
        assert torch.equal(mmspec.generate(model, drafter=drafter, **settings), expected)


def test_computed_positions_go_on_with_a_warning() -> None:
    model = tiny("llama")
    most = model.config.max_position_embeddings
    ids = torch.randint(5, 90, (1, most + 6))
    expected = model.generate(ids, max_new_tokens=4)
    with pytest.warns(
        UserWarning, match=f"expected a prompt of at most {most} tokens, .*, got {most + 6}; decoding continues"
    ):
        out = mmspec.generate(model, input_ids=ids, max_new_tokens=4)
    assert torch.equal(out, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mmspec.generate(model, input_ids=ids[:, :most], max_new_tokens=2)
