"""`past_key_values` of a result, and a caller's own cache: what transformers would have put there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, QuantizedCache, StaticCache

import mmspec
from mmspec.vlm.conversation import Past
from mmspec.vlm.drafters import PromptLookup
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.classes.rows import crossed
from tests.vlm.doors import DOORS, call_through
from tests.vlm.drafts import Scripted, continuation
from tests.vlm.layer_kinds import ONCE, model_with, ragged
from tests.vlm.test_tokenizer_argument import with_defaults
from tests.vlm.tiny import prompt, tiny

STEPS = 12
LENGTHS = (13, 6, 10)  # prompts longer and shorter than windows and chunks of 8
WANTS = dict(return_dict_in_generate=True, max_new_tokens=STEPS, do_sample=False)


def held(cache: Cache) -> list[tuple]:
    """Per layer its class, how many tokens it counts, and its tensors."""
    found = []
    for layer in cache.layers:
        count = layer.get_seq_length() if hasattr(layer, "get_seq_length") else None
        tensors = [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            tensors += states.values()
        found.append((type(layer), None if count is None else int(count), [t for t in tensors if t is not None]))
    return found


def alike(ours: Cache, theirs: Cache, hidden: Tensor | None = None) -> None:
    """Asserts that caches hold the same. hidden: bool [B, P], slots of padding, whose content nothing reads."""
    ours, theirs = held(ours), held(theirs)
    assert [our[:2] for our in ours] == [their[:2] for their in theirs]
    for (_, _, found), (_, _, wanted) in zip(ours, theirs, strict=True):
        assert [t.shape for t in found] == [t.shape for t in wanted]
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == b.dtype and a.isfinite().all()
            if hidden is not None and a.dim() == 4 and a.shape[2] > hidden.shape[1]:
                a, b = a.clone(), b.clone()
                for x in (a, b):
                    x[:, :, : hidden.shape[1]].masked_fill_(hidden[:, None, :, None], 0.0)
            torch.testing.assert_close(a, b, rtol=1e-4, atol=5e-4)


def ending_early(name: str) -> tuple[dict, list[list[int]]]:
    """A ragged request whose rows end at different places, and its continuation by transformers."""
    inputs = ragged(LENGTHS)
    plain = continuation(model_with(name).generate(**inputs, **WANTS).sequences, max(LENGTHS))
    settings = dict(inputs, **WANTS, eos_token_id=[plain[1][3], plain[2][6]], pad_token_id=2)
    return settings, plain


@pytest.mark.parametrize("name", ONCE)
def test_a_result_holds_transformers_own_cache(name: str) -> None:
    model, (settings, plain) = model_with(name), ending_early(name)
    expected = model.generate(**settings)
    for drafter in (None, Scripted(plain, "static", vocab=60)):
        out = mmspec.generate(model, drafter=drafter, **settings)
        assert torch.equal(out.sequences, expected.sequences)
        assert type(out.past_key_values) is type(expected.past_key_values) is DynamicCache
        assert out["past_key_values"] is out.past_key_values
        alike(out.past_key_values, expected.past_key_values, settings["attention_mask"] == 0)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ("LlamaForCausalLM", "Gemma3ForCausalLM", "Qwen3_5ForCausalLM"))
def test_the_model_continues_from_it(name: str, door: str) -> None:
    model, inputs = model_with(name), {"input_ids": torch.tensor([list(range(5, 18))])}
    drafter = Scripted(continuation(model.generate(**inputs, **WANTS).sequences, 13), "chain", vocab=60)
    out = call_through(door, model, drafter=drafter, **inputs, **WANTS)
    longer = torch.cat([out.sequences, torch.tensor([[31, 32, 33]])], 1)
    expected = model.generate(longer, max_new_tokens=STEPS, do_sample=False)
    assert out.past_key_values.get_seq_length() == out.sequences.shape[1] - 1
    found = model.generate(longer, past_key_values=out.past_key_values, max_new_tokens=STEPS, do_sample=False)
    assert torch.equal(found, expected)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl"))
def test_behind_pictures_and_padding(kind: str, door: str) -> None:
    model, inputs = tiny(kind), prompt(kind, 1, batch=4, seed=9)
    expected = model.generate(**inputs, **WANTS)
    drafter = Scripted(continuation(expected.sequences, inputs["input_ids"].shape[1]), "dynamic")
    out = call_through(door, model, drafter=drafter, **inputs, **WANTS)
    assert torch.equal(out.sequences, expected.sequences)
    alike(out.past_key_values, expected.past_key_values, inputs["attention_mask"] == 0)


def test_layers_of_cross_attention() -> None:
    model = model_of("MllamaForConditionalGeneration", config_of("MllamaForConditionalGeneration"))
    inputs = crossed(model, (2, 1, 1), torch.Generator().manual_seed(0))
    plain = continuation(model.generate(**inputs, **WANTS).sequences, inputs["input_ids"].shape[1])
    settings = dict(inputs, **WANTS, eos_token_id=[plain[1][3], plain[2][6]])
    expected = model.generate(**settings)
    out = mmspec.generate(model, drafter=Scripted(plain, "chain", vocab=61), **settings)
    alike(out.past_key_values, expected.past_key_values, inputs["attention_mask"] == 0)


def test_a_cache_that_offloads_its_layers_does_so_when_it_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, own = tiny("llama"), prompt("llama", seed=3), DynamicCache()
    moved = []
    own.offloading, own.only_non_sliding = True, False  # its own constructor wants an accelerator
    monkeypatch.setattr(own, "offload", lambda layer, only: moved.append((layer, only)))
    mmspec.generate(model, **inputs, max_new_tokens=STEPS, past_key_values=own)
    assert moved == [(0, False), (1, False)]
    alike(own, mmspec.generate(model, **inputs, **WANTS).past_key_values)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "make",
    (
        lambda model: DynamicCache(),
        lambda model: DynamicCache(config=model.config),
        lambda model: StaticCache(config=model.config, max_cache_len=64),
    ),
)
def test_a_callers_own_empty_cache_is_filled(make: object, door: str) -> None:
    model, inputs = tiny("llama"), prompt("llama", batch=4, seed=3)
    plain = model.generate(**inputs, max_new_tokens=STEPS)
    rows = continuation(plain, inputs["input_ids"].shape[1])
    settings = dict(inputs, max_new_tokens=STEPS, eos_token_id=[rows[1][3]])
    theirs, ours = make(model), make(model)
    expected = model.generate(**settings, past_key_values=theirs)
    found = call_through(door, model, drafter=Scripted(rows), **settings, past_key_values=ours)
    assert torch.equal(found, expected) and ours.get_seq_length() == found.shape[1] - 1
    alike(ours, theirs)
    again = make(model)
    out = call_through(door, model, **settings, past_key_values=again, return_dict_in_generate=True)
    assert out.past_key_values is again and int(again.get_seq_length()) == found.shape[1] - 1


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ("dynamic", "static"))
def test_cache_implementations_of_the_same_text(name: str, door: str) -> None:
    model, inputs = tiny("llama"), prompt("llama", seed=3)
    settings = dict(inputs, **WANTS, cache_implementation=name)
    expected = model.generate(**settings)
    out = call_through(door, model, drafter=PromptLookup(), **settings)
    assert torch.equal(out.sequences, expected.sequences)
    assert type(out.past_key_values) is type(expected.past_key_values)
    alike(out.past_key_values, expected.past_key_values)


FP8 = dict(cache_implementation="quantized", cache_config={"backend": "fp8"})


@pytest.mark.parametrize("where", ("argument", "config", "model"))
@pytest.mark.parametrize("door", DOORS)
def test_a_quantized_cache_is_refused(door: str, where: str) -> None:
    model, settings = tiny("llama"), dict(max_new_tokens=4)
    if where == "argument":
        settings |= FP8
    elif where == "config":
        settings = {"generation_config": GenerationConfig(**settings, **FP8)}
    else:
        model = with_defaults(model, **FP8)
    with pytest.raises(ValueError, match="cache_implementation: expected .* got 'quantized'"):
        call_through(door, model, **prompt("llama"), **settings)


def test_continuous_batching_is_refused_instead_of_going_past_us() -> None:
    with pytest.raises(ValueError, match="cache_implementation: expected .* got 'paged'"):
        mmspec.generate(tiny("llama"), **prompt("llama"), max_new_tokens=4, cache_implementation="paged")


class Forgetful(DynamicCache):
    """A cache of the caller's own class, which may keep whatever it likes."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("name", "make", "sentence"),
    (
        (
            "llama",
            lambda model: QuantizedCache("fp8", model.config),
            "DynamicCache or a StaticCache, got a QuantizedCache",
        ),
        ("llama", lambda model: Forgetful(), "DynamicCache or a StaticCache, got a Forgetful"),
        ("llama", lambda model: StaticCache(config=model.config, max_cache_len=9), "room for"),
        ("Qwen3_5ForCausalLM", lambda model: DynamicCache(), "config="),
    ),
)
def test_caches_that_cannot_be_filled_are_refused(door: str, name: str, make: object, sentence: str) -> None:
    model = tiny(name) if name == "llama" else model_with(name)
    passes = []
    hook = model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    try:
        with pytest.raises(ValueError, match=f"past_key_values: expected .*{sentence}"):
            call_through(
                door, model, input_ids=torch.tensor([[5, 6, 7, 8]]), past_key_values=make(model), max_new_tokens=9
            )
    finally:
        hook.remove()
    assert not passes or name != "llama"


def test_steps_by_hand_leave_no_cache_of_the_caller_empty() -> None:
    with pytest.raises(ValueError, match="past_key_values: expected none to step by hand"):
        mmspec.vlm.start(tiny("llama"), **prompt("llama"), past_key_values=DynamicCache(), max_new_tokens=4)


def test_a_conversation_is_its_own_cache() -> None:
    model = tiny("llama")
    past = Past(model)
    out = mmspec.generate(model, input_ids=torch.tensor([[5, 6, 7, 8]]), past_key_values=past, **WANTS)
    assert out.past_key_values is past and past.held == 4 + STEPS - 1


def test_where_there_is_no_cache() -> None:
    model, inputs = tiny("llama"), prompt("llama")
    assert mmspec.generate(model, **inputs, **WANTS, use_cache=False).past_key_values is None
    assert mmspec.generate(model, **inputs, max_new_tokens=4, return_dict=True).past_key_values is None
    hook = model.lm_head.register_forward_hook(lambda *a: a[-1] * torch.nan)
    try:
        own = DynamicCache()
        out = mmspec.generate(model, **inputs, **WANTS, return_dict=True, past_key_values=own)
    finally:
        hook.remove()
    assert out.errors and out.past_key_values is None and own.get_seq_length() == 0


def test_only_a_cache_that_is_wanted_costs_a_pass() -> None:
    inputs = prompt("llama", batch=4, seed=3)
    plain = mmspec.generate(tiny("llama"), **inputs, max_new_tokens=STEPS)
    rows = continuation(plain, inputs["input_ids"].shape[1])
    settings = dict(inputs, drafter=Scripted(rows), max_new_tokens=STEPS, return_dict=True)
    ending = dict(eos_token_id=[rows[1][3]])
    counts = [
        mmspec.generate(tiny("llama"), **settings, **more).stats.target_passes
        for more in (ending, dict(ending, return_dict_in_generate=True), {}, dict(return_dict_in_generate=True))
    ]
    assert counts[1] == counts[0] + 1 and counts[2] == counts[3]


def test_captured_rounds_give_way_to_the_cache() -> None:
    inputs = prompt("llama", seed=3)
    with pytest.warns(RuntimeWarning, match="past_key_values"):
        out = mmspec.generate(tiny("llama"), **inputs, **WANTS, capture=True)
    expected = tiny("llama").generate(**inputs, **WANTS)
    alike(out.past_key_values, expected.past_key_values)
