"""Bad input stops early with one sentence; bad numbers stop their own row and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

import mmspec
from mmspec.core.round.loop import Drafter
from mmspec.vlm.drafters import PromptLookup, SmallModel, TokenRecycling
from mmspec.vlm.output import RowsFailed
from tests.vlm.drafts import SHAPES, Bigram, Scripted, continuation
from tests.vlm.tiny import IMAGE, PAD, VOCAB, prompt, tiny

STEPS = 20


def clean(seed: int = 1) -> tuple[dict[str, Tensor], list[list[int]]]:
    inputs = prompt("llava", 1, batch=4, seed=seed)
    sequences = tiny("llava").generate(**inputs, max_new_tokens=STEPS)
    return inputs, continuation(sequences, inputs["input_ids"].shape[1])


@contextmanager
def poison(expected: int, value: float = torch.nan) -> Iterator[None]:
    """Wherever the model would say `expected` next, it says `value` instead."""

    def spoil(module: object, args: object, logits: Tensor) -> Tensor:
        return torch.where((logits.argmax(-1) == expected)[..., None], value, logits)

    handle = tiny("llava").lm_head.register_forward_hook(spoil)
    try:
        yield
    finally:
        handle.remove()


def lonely(truth: list[list[int]], row: int, least: int) -> int:
    """The first place at or after `least` where row `row` says what it never said before and no other row says."""
    others = {t for i, tokens in enumerate(truth) if i != row for t in tokens}
    return next(k for k in range(least, STEPS) if truth[row][k] not in others | set(truth[row][:k]))


def drafter_of(name: str | None, truth: list[list[int]]) -> Drafter | None:
    if name is None:
        return None
    if name == "small":
        return SmallModel(tiny("mistral"))
    free = {"lookup": PromptLookup, "recycling": TokenRecycling}
    return free[name]() if name in free else Scripted(truth, name)


@pytest.mark.covering
@pytest.mark.parametrize("name", (None, *SHAPES, "lookup", "recycling", "small"))
@pytest.mark.parametrize("least", (0, 5))
@pytest.mark.parametrize("value", (torch.nan, torch.inf))
def test_a_row_of_nan_leaves_the_others_alone(value: float, least: int, name: str | None) -> None:
    inputs, truth = clean()
    row = next(r for r in (2, 1, 0, 3) if least or lonely(truth, r, 0) == 0)
    count = lonely(truth, row, least)
    settings = dict(drafter=drafter_of(name, truth), max_new_tokens=STEPS, return_dict=True)
    with poison(truth[row][count], value):
        result = mmspec.generate(tiny("llava"), **inputs, **settings)
    generated = continuation(result.sequences, inputs["input_ids"].shape[1])
    assert list(result.errors) == [row] and f"after {count} generated tokens" in result.errors[row]
    for i, tokens in enumerate(generated):
        assert tokens == (truth[i] if i != row else truth[i][:count] + [PAD] * (STEPS - count))
    assert result.stats.emitted == [STEPS if i != row else count for i in range(4)]


def test_without_return_dict_it_raises_with_the_rest() -> None:
    inputs, truth = clean()
    count = lonely(truth, 2, 3)
    with poison(truth[2][count]):
        for through in (mmspec.generate, lambda model, **k: model.generate(**k, custom_generate=mmspec.decode)):
            with pytest.raises(RowsFailed, match="row 2: expected finite logits") as caught:
                through(tiny("llava"), drafter=Scripted(truth, "static"), **inputs, max_new_tokens=STEPS)
            tokens = continuation(caught.value.partial.sequences, inputs["input_ids"].shape[1])
            assert tokens[0] == truth[0] and tokens[2][:count] == truth[2][:count]


def test_sampled_rows_beside_a_failed_row_are_unchanged() -> None:
    inputs, _ = clean()
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))
    settings = dict(drafter=Bigram(table), do_sample=True, seed=[1, 2, 3, 4], max_new_tokens=STEPS, return_dict=True)
    whole = mmspec.generate(tiny("llava"), **inputs, **settings)
    with poison(int(whole.sequences[3, -3])):
        result = mmspec.generate(tiny("llava"), **inputs, **settings)
    assert result.errors
    for row in range(4):
        count = result.stats.emitted[row]
        assert (count == STEPS) == (row not in result.errors)
        first = inputs["input_ids"].shape[1]
        assert torch.equal(result.sequences[row, : first + count], whole.sequences[row, : first + count])


@pytest.mark.parametrize("name", (None, "static", "dynamic"))
def test_nan_states_stay_in_their_row(name: str | None) -> None:
    """A drafted token whose keys are NaN may stop its row before the token is reached, never change what was said."""
    inputs, truth = clean()
    row = 0
    count = lonely(truth, row, 6)
    table, bad = tiny("llava").get_input_embeddings().weight, truth[row][count]
    assert not (inputs["input_ids"] == bad).any()
    saved = table[bad].clone()
    settings = dict(drafter=drafter_of(name, truth), max_new_tokens=STEPS, return_dict=True)
    table[bad] = torch.nan
    try:
        result = mmspec.generate(tiny("llava"), **inputs, **settings)
    finally:
        table[bad] = saved
    kept = continuation(result.sequences, inputs["input_ids"].shape[1])
    assert row in result.errors and result.stats.emitted[row] <= count + 1
    for i, tokens in enumerate(kept):
        emitted = result.stats.emitted[i]
        assert tokens[:emitted] == truth[i][:emitted] and (emitted == STEPS or i in result.errors)
    if name is None:
        assert result.stats.emitted[row] == count + 1 and list(result.errors) == [row]


def test_every_row_bad_from_the_start() -> None:
    inputs, truth = clean()
    wants = dict(return_dict=True, return_dict_in_generate=True, output_scores=True, max_new_tokens=STEPS)
    handle = tiny("llava").lm_head.register_forward_hook(lambda *a: a[-1] * torch.nan)
    try:
        result = mmspec.generate(tiny("llava"), **inputs, **wants)
    finally:
        handle.remove()
    assert torch.equal(result.sequences, inputs["input_ids"]) and len(result.errors) == 4 and result.scores == ()
    with poison(truth[1][0]):
        result = mmspec.generate(tiny("llava"), **inputs, **wants)
    assert 1 in result.errors and result.scores[0][1].isnan().all() and result.scores[0][0].isfinite().all()


def t5() -> torch.nn.Module:
    config = hf.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return hf.T5ForConditionalGeneration(config)


def windowed() -> torch.nn.Module:
    config = hf.MistralConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=8,
    )
    return hf.MistralForCausalLM(config)


def without_positions() -> torch.nn.Module:
    return hf.BloomForCausalLM(hf.BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2))


def flex() -> torch.nn.Module:
    model = windowed()
    model.config.sliding_window = None
    model.config._attn_implementation = "flex_attention"
    return model


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (t5, "expected a decoder-only model, got the encoder-decoder T5ForConditionalGeneration"),
        (without_positions, "takes position_ids, got BloomForCausalLM"),
        (flex, "attn_implementation: expected 'sdpa' or 'eager', got 'flex_attention'"),
    ],
)
def test_unsupported_models(make: Callable, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        mmspec.generate(make(), input_ids=torch.tensor([[1, 2, 3]]), max_new_tokens=6)


def filled() -> DynamicCache:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8), 0)
    return cache


def by_steps(model: torch.nn.Module, **inputs: object) -> None:
    mmspec.vlm.start(model, **inputs).run()


class Restless(LogitsProcessor):
    """Gives other scores for the same prefix."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + torch.rand(scores.shape)


@pytest.mark.parametrize("call", [mmspec.generate, by_steps])
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (dict(max_new_tokens=-3), "max_new_tokens"),
        (dict(num_beams=2), "num_beams: expected 1, got 2"),
        (dict(penalty_alpha=0.6, top_k=4), "expected greedy search or sampling, got contrastive_search"),
        (dict(prompt_lookup_num_tokens=4), "expected greedy search or sampling, got assisted_generation"),
        (dict(assistant_model=torch.nn.Identity()), "assistant_model: expected none.*SmallModel"),
        (dict(logits_processor=LogitsProcessorList([Restless()])), "logits_processor: expected.*got Restless"),
        (dict(return_dict_in_generate=True, output_attentions=True), "output_attentions: expected False"),
        (dict(return_dict_in_generate=True, output_hidden_states=True), "output_hidden_states: expected False"),
        (dict(stop_strings=["a"]), "stop_strings: expected a tokenizer"),
        (dict(rule="nonsense"), "rule: expected one of exact"),
        (dict(rule="reflection"), "rule 'reflection': expected a target that gives Gaussians"),
        (dict(rule="reflection", do_sample=True), "rule 'reflection': expected a target that gives Gaussians"),
        (
            dict(rule="traversal", do_sample=True, drafter=Scripted([[7] * 12])),
            "rule 'traversal': expected drafts of kind",
        ),
        (dict(rule="token", do_sample=True, drafter=Bigram(torch.zeros(VOCAB, VOCAB), (0, 0, 0))), "expected a chain"),
        (dict(seed=[1, 2]), "seed: expected one int or 1 ints"),
    ],
    ids=lambda v: None if isinstance(v, str) else "-".join(v),
)
def test_unsupported_settings(call: Callable, settings: dict, sentence: str) -> None:
    ids = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]])
    with pytest.raises(ValueError, match=sentence):
        call(tiny("llama"), input_ids=ids, **dict(max_new_tokens=12) | settings)


def test_a_filled_cache_is_refused_and_an_empty_cache_accepted() -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    with pytest.raises(ValueError, match="past_key_values: expected none or an empty cache"):
        mmspec.generate(tiny("llama"), input_ids=ids, past_key_values=filled(), max_new_tokens=3)
    out = mmspec.generate(tiny("llama"), input_ids=ids, past_key_values=DynamicCache(), max_new_tokens=3)
    assert torch.equal(out, tiny("llama").generate(ids, max_new_tokens=3))


def test_fewer_ids_than_embeddings_are_refused() -> None:
    with pytest.raises(ValueError, match="input_ids: expected the ids of the whole prompt, got 2"):
        mmspec.generate(
            tiny("llama"), input_ids=torch.full((1, 2), 7), inputs_embeds=torch.randn(1, 4, 32), max_new_tokens=3
        )


@pytest.mark.parametrize("kind", ("llava", "llava_next", "qwen2_5_vl", "qwen3_vl"))
def test_more_placeholders_than_pictures(kind: str) -> None:
    inputs = prompt(kind, 1, seed=2)
    inputs["input_ids"][0, 1] = IMAGE
    seen = []
    handle = tiny(kind).model.language_model.register_forward_hook(lambda *a: seen.append(1))
    try:
        with pytest.raises(ValueError, match="Image features and image tokens do not match"):
            mmspec.generate(tiny(kind), **inputs, max_new_tokens=3)
    finally:
        handle.remove()
    assert not seen


def test_a_small_model_of_another_vocabulary() -> None:
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    other = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=VOCAB + 9, **sizes))
    with pytest.raises(ValueError, match="expected the target's vocabulary of 101, got 110"):
        mmspec.generate(tiny("llama"), drafter=SmallModel(other), **prompt("llama"), max_new_tokens=4)
