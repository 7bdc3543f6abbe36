"""A class that the suite does not test whole is taken when its own passes show that drafts of it can be verified."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
import transformers as hf
from torch import nn

import mmspec
from mmspec.vlm import admission
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import parts_of
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.drafts import SHAPES, Scripted, continuation
from tests.vlm.tiny import _DECODER, PAD, VOCAB, liven, prompt, tiny

_SIZES = dict(vocab_size=VOCAB, hidden_size=32, bos_token_id=1, eos_token_id=None, pad_token_id=PAD)
_LAYERS = dict(num_hidden_layers=2, num_attention_heads=4)
_LLAMA4 = dict(
    floor_scale=4,
    attn_temperature_tuning=True,
    layer_types=["full_attention"] * 2,
    num_local_experts=2,
    intermediate_size_mlp=48,
)


def made(name: str, **config: object) -> nn.Module:
    """A tiny model of the class with random weights."""
    cls = getattr(hf, name)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = cls(cls.config_class(**config)).eval()
        liven(model)
    model.generation_config = hf.GenerationConfig(pad_token_id=PAD, bos_token_id=1)
    return model.requires_grad_(False)


def local(window: int) -> nn.Module:
    kinds = [[["global", "local"], 1]]
    return made(
        "GPTNeoForCausalLM",
        num_layers=2,
        num_heads=4,
        attention_types=kinds,
        window_size=window,
        max_position_embeddings=128,
        **_SIZES,
    )


SOUND = {
    "gpt2": lambda: made("GPT2LMHeadModel", n_layer=2, n_head=4, n_positions=128, **_SIZES),
    "opt": lambda: made(
        "OPTForCausalLM", ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=128, **_SIZES, **_LAYERS
    ),
    "falcon": lambda: made("FalconForCausalLM", **_SIZES, **_LAYERS),
    "gemma": lambda: made("GemmaForCausalLM", **_DECODER),
}
UNSOUND = {
    "alibi": (lambda: made("FalconForCausalLM", alibi=True, **_SIZES, **_LAYERS), "verifies drafts"),
    "temperature by slot": (lambda: made("Llama4ForCausalLM", **_DECODER, **_LLAMA4, no_rope_layers=[1, 0]), "logits"),
    "dynamic mask": (lambda: made("DogeForCausalLM", **_DECODER, keep_window_size=4), "tree of drafts"),
    "states on modules": (
        lambda: made("RecurrentGemmaForCausalLM", num_hidden_layers=3, num_attention_heads=4, lru_width=32, **_SIZES),
        "keep their states in the cache|tree of drafts",  # the second in versions whose class has one more cache
    ),
}


@pytest.mark.parametrize("kind", SOUND)
def test_a_class_outside_the_list_proves_itself_and_says_its_own_words(kind: str) -> None:
    model, inputs = SOUND[kind](), prompt("llama", batch=4, seed=3)
    expected = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    for name in (None, *SHAPES):
        drafter = None if name is None else Scripted(continuation(expected, inputs["input_ids"].shape[1]), name)
        assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, max_new_tokens=20), expected), name


@pytest.mark.parametrize("kind", UNSOUND)
def test_a_class_whose_passes_differ_from_its_steps_is_refused(kind: str) -> None:
    make, sentence = UNSOUND[kind]
    with pytest.raises(ValueError, match=sentence) as caught:
        take_apart(make())
    assert "\n" not in str(caught.value) and "model.generate" in str(caught.value)


def test_temperature_by_slot_is_accepted_below_its_first_step_and_refused_beyond() -> None:
    """A few tokens never reach position 8192, where Llama 4 begins to differ: its config says so, and the trial would."""
    config = _DECODER | _LLAMA4 | {"max_position_embeddings": 32768, "floor_scale": 8192, "no_rope_layers": [1, 0]}
    model, other = (made("Llama4ForCausalLM", **config) for _ in range(2))
    parts = parts_of(other)
    with pytest.raises(ValueError, match="how many slots its cache holds"):
        admission.prove_model(replace(parts, plan=replace(parts.plan, temperature=None)))
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    expected = model.generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(mmspec.generate(model, input_ids=ids, max_new_tokens=8), expected)
    with pytest.raises(ValueError, match="floor_scale of 8191 tokens of Llama4ForCausalLM, got 6 and 8186"):
        mmspec.generate(model, input_ids=ids, max_new_tokens=8186)


def test_local_attention_is_accepted_while_the_request_fits_and_refused_beyond() -> None:
    model, ids = local(24), torch.tensor([[5, 6, 7, 8, 9, 10]])
    expected = model.generate(ids, max_new_tokens=18, do_sample=False)
    ours = mmspec.generate(
        model, drafter=Scripted(continuation(expected, 6), "static"), input_ids=ids, max_new_tokens=18
    )
    assert torch.equal(ours, expected)
    for drafter in (None, mmspec.drafters.PromptLookup()):
        with pytest.raises(ValueError, match="layer 1 that sees 23 of 35 earlier tokens"):
            mmspec.generate(model, drafter=drafter, input_ids=ids, max_new_tokens=30)


@pytest.mark.parametrize("window", (None, 26, 4))
def test_a_window_is_seen_through_and_crossed(window: int | None) -> None:
    model, ids = made("MistralForCausalLM", **_DECODER, sliding_window=window), torch.tensor([[5, 6, 7, 8, 9, 10]])
    expected = model.generate(ids, max_new_tokens=30, do_sample=False)
    ours = mmspec.generate(
        model, drafter=Scripted(continuation(expected, 6), "static"), input_ids=ids, max_new_tokens=30
    )
    assert torch.equal(ours, expected)


def test_windows_of_a_class_from_elsewhere_have_to_hold_the_whole_request() -> None:
    class MistralModel(hf.MistralModel):
        """Whose windows no table of ours has seen."""

    model, ids = made("MistralForCausalLM", **_DECODER, sliding_window=26), torch.tensor([[5, 6, 7, 8, 9, 10]])
    model.model.__class__ = MistralModel
    assert torch.equal(
        mmspec.generate(model, input_ids=ids, max_new_tokens=20),
        model.generate(ids, max_new_tokens=20, do_sample=False),
    )
    with pytest.raises(ValueError, match="sliding_window of 26 tokens of MistralForCausalLM, got 6 and 21"):
        mmspec.generate(model, input_ids=ids, max_new_tokens=21)


def test_a_window_that_is_switched_off_is_none() -> None:
    model = made("Qwen2ForCausalLM", **_DECODER, sliding_window=4, use_sliding_window=False)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    assert torch.equal(mmspec.generate(model, input_ids=ids, max_new_tokens=9), model.generate(ids, max_new_tokens=9))


def test_the_same_name_from_elsewhere_has_to_prove_itself() -> None:
    class LlamaForCausalLM(hf.LlamaForCausalLM):
        def forward(self, *args: object, attention_mask: object = None, position_ids: object = None, **kwargs: object):
            return super().forward(*args, position_ids=position_ids, **kwargs)  # forgets the mask

    hf_config = hf.LlamaConfig(**_DECODER)
    model = LlamaForCausalLM(hf_config).eval()
    liven(model)
    with pytest.raises(ValueError, match="expected drafted passes of LlamaForCausalLM"):
        take_apart(model)


def test_a_tested_wrapper_over_another_text_model_proves_itself() -> None:
    config = tiny("llava").config.to_dict()
    config = hf.LlavaConfig(**config | {"text_config": hf.DogeConfig(**_DECODER, keep_window_size=4).to_dict()})
    model = hf.LlavaForConditionalGeneration(config).eval()
    liven(model)
    with pytest.raises(ValueError, match="expected drafted passes of LlavaForConditionalGeneration"):
        take_apart(model)


def test_a_proof_runs_once_and_dies_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, check = [], admission.text_trial
    monkeypatch.setattr(admission, "text_trial", lambda parts: (runs.append(1), check(parts)))
    gc.collect()
    model, known = SOUND["gpt2"](), len(admission._OUTCOMES)
    for _ in range(3):
        take_apart(model)
    assert runs == [1] and len(admission._OUTCOMES) == known + 1
    assert not any("proof" in name or "proven" in name for name in vars(model))
    del model
    gc.collect()
    assert len(admission._OUTCOMES) == known


def test_a_proof_draws_nothing_from_the_global_generator() -> None:
    ids, said = torch.tensor([[5, 6, 7]]), []
    model = SOUND["gpt2"]()
    for _ in range(2):  # the first request proves the model, the second finds it proven
        torch.manual_seed(5)
        said.append(mmspec.generate(model, input_ids=ids, do_sample=True, max_new_tokens=8))
    assert torch.equal(*said)


@pytest.mark.parametrize("name", ("GraniteMoeHybridForCausalLM", "Lfm2ForCausalLM"))
def test_a_model_as_it_is_loaded_proves_itself(name: str) -> None:
    """Weights of a freshly loaded model ask for gradients, and some classes overwrite their recurrent states in place."""
    model, ids = model_of(name, config_of(name)).requires_grad_(True), torch.arange(5, 17)[None]
    out = mmspec.generate(model, input_ids=ids, do_sample=False, max_new_tokens=4)
    assert torch.equal(out, model.generate(input_ids=ids, do_sample=False, max_new_tokens=4))
