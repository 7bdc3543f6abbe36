"""Drafters that ship with models keep the words of targets with pictures, positions on several axes and layers of any kind."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.gemma4 import Gemma4Assistant, Gemma4AssistantConfig
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.classes.pictures import picture_prompt
from tests.vlm.drafters.watched import Planted

CASES = {
    "Qwen3_5ForConditionalGeneration": "mtp",
    "Glm4vMoeForConditionalGeneration": "mtp",
    "Exaone4_5_ForConditionalGeneration": "mtp",
    "Gemma4ForConditionalGeneration": "assistant",
    "Lfm2VlForConditionalGeneration": "dflash",
    "Gemma3ForConditionalGeneration": "dflash",
}
SHAPES = (Chain(FixedLength(4)), StaticTree((0, 0, 0, 1, 1, 2, 3)), DynamicTree(nodes=8, depth=3, width=3))


@cache
def target(name: str) -> nn.Module:
    return model_of(name, config_of(name))


@cache
def drafter(name: str) -> ShapedDrafter:
    parts = take_apart(target(name))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if CASES[name] == "mtp":
            made = Mtp(MtpConfig(parts.hidden_size, parts.vocab_size), parts)
        elif CASES[name] == "dflash":
            made = new_drafter("dflash", target(name), num_hidden_layers=2, block_size=6)
        else:
            text = target(name).config.get_text_config()
            layers = zip(text.layer_types, parts.decoder.layers, strict=True)
            dims = {kind: layer.self_attn.head_dim for kind, layer in layers}
            made = Gemma4Assistant(
                Gemma4AssistantConfig(
                    hidden_size=16,
                    backbone_hidden_size=parts.hidden_size,
                    vocab_size=parts.vocab_size,
                    intermediate_size=24,
                    num_attention_heads=text.num_attention_heads,
                    layer_types=tuple(dims),
                    head_dim=dims["sliding_attention"],
                    global_head_dim=dims["full_attention"],
                    sliding_window=text.sliding_window,
                )
            )
    return made.eval().requires_grad_(False)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("pictures", ("pictures", "mixed"))
@pytest.mark.parametrize("name", CASES)
def test_words_behind_pictures_are_the_targets_own_whatever_is_accepted(name: str, pictures: str) -> None:
    model = target(name)
    inputs = dict(picture_prompt(name, model, pictures), do_sample=False)
    start = inputs["input_ids"].shape[1]
    truth = model.generate(**inputs, max_new_tokens=20)
    for shape in SHAPES:
        planted = Planted(drafter(name).with_shape(shape), truth=truth[:, start:].tolist(), words=60)
        out = mmspec.generate(model, drafter=planted, return_dict=True, max_new_tokens=14, **inputs)
        assert torch.equal(out.sequences, truth[:, : start + 14])
        assert out.stats.accept_length > 1.5
