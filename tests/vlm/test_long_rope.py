"""RoPE whose frequencies depend on the sequence's length: drafted passes turn each node as plain decoding would."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import mmspec
from tests.vlm.drafts import SHAPES, Scripted, continuation
from tests.vlm.tiny import _DECODER, _TOWER, IMAGE, PAD, liven

ORIGINAL, STEPS = 16, 28
ROPES = {
    "dynamic": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 1e4},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.3, 1.6, 2.0],
        "long_factor": [2.0, 4.0, 7.0, 9.0],
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "rope_theta": 1e4,
    },
}


def model_of(kind: str, rope: str) -> nn.Module:
    """A fresh model: transformers keeps a dynamic type's last length on the module."""
    longest = ORIGINAL if rope == "dynamic" else 4 * ORIGINAL
    sizes = dict(_DECODER, max_position_embeddings=longest, rope_parameters=dict(ROPES[rope]))
    if kind == "llava":
        config = hf.LlavaConfig(
            vision_config=hf.CLIPVisionConfig(**_TOWER), text_config=hf.LlamaConfig(**sizes), image_token_id=IMAGE
        )
    elif kind == "phi3":
        config = hf.Phi3Config(**sizes, original_max_position_embeddings=ORIGINAL, sliding_window=None)
    else:
        config = {"llama": hf.LlamaConfig, "qwen2": hf.Qwen2Config}[kind](**sizes)
    made = {"llava": hf.LlavaForConditionalGeneration, "phi3": hf.Phi3ForCausalLM, "llama": hf.LlamaForCausalLM}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = made.get(kind, hf.Qwen2ForCausalLM)(config).eval()
        liven(model)
    model.generation_config = hf.GenerationConfig(pad_token_id=PAD, bos_token_id=1)
    return model.requires_grad_(False)


def ask(kind: str, lengths: tuple[int, ...], seed: int = 0) -> dict[str, Tensor]:
    """Prompts of so many tokens, left padded; with a picture of four tokens in each for LLaVA."""
    rng = torch.Generator().manual_seed(seed)
    rows = [torch.randint(5, 90, (length,), generator=rng).tolist() for length in lengths]
    inputs = {}
    if kind == "llava":
        rows = [row[:1] + [IMAGE] * 4 + row[5:] for row in rows]
        inputs["pixel_values"] = torch.randn(len(rows), 3, 8, 8, generator=rng)
    longest = max(lengths)
    inputs["input_ids"] = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
    inputs["attention_mask"] = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return inputs


LENGTHS = {"llama": ((7,), (16,), (25,), (12, 7, 9), (15, 20)), "qwen2": ((12, 7),), "llava": ((9,), (15, 20))}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    ("kind", "lengths"), [(kind, entry) for kind, found in LENGTHS.items() for entry in found], ids=str
)
@pytest.mark.parametrize("rope", ROPES)
def test_words_are_the_targets_own_on_both_sides_of_the_switch(kind: str, rope: str, lengths: tuple[int, ...]) -> None:
    model, inputs = model_of(kind, rope), ask(kind, lengths)
    expected = copy.deepcopy(model).generate(**inputs, max_new_tokens=STEPS, do_sample=False)
    truth = continuation(expected, inputs["input_ids"].shape[1])
    for name in (None, *SHAPES):  # one model for all: nothing of a request stays on it
        drafter = None if name is None else Scripted(truth, name)
        ours = mmspec.generate(model, drafter=drafter, **inputs, max_new_tokens=STEPS, do_sample=False)
        assert torch.equal(ours, expected), name


def test_a_request_leaves_the_models_frequencies_as_they_were() -> None:
    model, inputs = model_of("llama", "dynamic"), ask("llama", (7,))
    mmspec.generate(model, **inputs, max_new_tokens=STEPS)
    rotary = model.model.rotary_emb
    assert rotary.max_seq_len_cached == ORIGINAL and torch.equal(rotary.inv_freq, rotary.original_inv_freq)


@pytest.mark.parametrize(("length", "most"), ((7, 10), (16, 1), (17, 20), (25, 20)))
def test_a_class_that_rereads_its_prompt_decodes_on_one_side_of_the_switch(length: int, most: int) -> None:
    model, inputs = model_of("phi3", "longrope"), ask("phi3", (length,))
    expected = copy.deepcopy(model).generate(**inputs, max_new_tokens=most, do_sample=False)
    for name in (None, "static"):
        drafter = None if name is None else Scripted(continuation(expected, length), name)
        assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, max_new_tokens=most), expected)


@pytest.mark.parametrize(("length", "most"), ((7, 11), (16, 2)))
def test_a_class_that_reads_its_prompt_again_refuses_to_cross_the_switch(length: int, most: int) -> None:
    with pytest.raises(ValueError, match=f"on one side of 16 tokens, got {length} and {most}; Phi3ForCausalLM reads"):
        mmspec.generate(model_of("phi3", "longrope"), **ask("phi3", (length,)), max_new_tokens=most)
