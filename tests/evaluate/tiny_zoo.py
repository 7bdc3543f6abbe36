"""A stand-in for the zoo: random tiny models and a byte-level processor with the zoo's chat layout."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from mmspec import zoo
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.drafters.base.feature_drafter import FeatureConfig
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from mmspec.vlm.drafters.flash.flash_drafter import Flash, FlashConfig
from mmspec.vlm.drafters.msd import Msd
from mmspec.zoo.architectures.llava import BOS, CHAT_TEMPLATE, EOS, IMAGE, PAD
from mmspec.zoo.files.table import MODELS
from tests.vlm.tiny import liven

SIDE, PATCH, WIDTH = 8, 4, 32


def byte_processor() -> hf.LlavaProcessor:
    """One token per byte; pictures to 8x8 in four image tokens."""
    names = [PAD, BOS, EOS, IMAGE, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    fast = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, additional_special_tokens=[IMAGE]
    )
    size = {"height": SIDE, "width": SIDE}
    return hf.LlavaProcessor(
        image_processor=hf.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size),
        tokenizer=fast,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
        chat_template=CHAT_TEMPLATE,
    )


def llava(layers: int, seed: int) -> hf.LlavaForConditionalGeneration:
    """A random LLaVA over the byte vocabulary whose end-of-text token is id 2."""
    text = hf.LlamaConfig(
        vocab_size=260,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    tower = hf.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    config = hf.LlavaConfig(vision_config=tower, text_config=text, image_token_id=3)
    torch.manual_seed(seed)
    model = hf.LlavaForConditionalGeneration(config).eval()
    liven(model)
    model.generation_config = hf.GenerationConfig(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return model.requires_grad_(False)


@lru_cache(maxsize=1)
def tiny_zoo() -> dict[str, Any]:
    """What `mmspec.zoo.load` gives for each name."""
    processor = byte_processor()
    torch.manual_seed(1)
    sizes = dict(hidden_size=WIDTH, intermediate_size=48, num_attention_heads=2, vocab_size=260)
    drafters = {
        "eagle": Eagle(EagleConfig(**sizes)),
        "eagle_text": Eagle(EagleConfig(**sizes, pictures="left_out")),
        "msd": Msd(FeatureConfig(**sizes)),
        "flash": Flash(FlashConfig(**sizes, latents=2, block=5, num_key_value_heads=2)),
    }
    chain = Chain(FixedLength(3))
    return {
        "vlm": (llava(2, 3), processor),
        "vlm/small": (llava(1, 4), processor),
        **{f"vlm/{name}": made.eval().requires_grad_(False).with_shape(chain) for name, made in drafters.items()},
    }


def load(name: str) -> Any:
    """In the place of `mmspec.zoo.load`; some drafters have no weights here."""
    if name not in tiny_zoo():
        raise ValueError(f"expected weights of {name}, got none, build them")
    return tiny_zoo()[name]


def use_tiny_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mmspec.zoo.load` hands out the tiny models during the test, and the zoo recommends the tiny EAGLE."""
    named = tuple(dict.fromkeys([*zoo.names(), *tiny_zoo()]))
    monkeypatch.setattr("mmspec.zoo.names", lambda: list(named))
    monkeypatch.setattr("mmspec.zoo.load", load)
    recommend_eagle(monkeypatch)


def recommend_eagle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zoo recommends the EAGLE drafter, which the tiny zoo has."""
    monkeypatch.setitem(MODELS, "vlm", replace(MODELS["vlm"], auto="vlm/eagle"))
