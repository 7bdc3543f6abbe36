"""A stand-in for the zoo's image models: random tiny LlamaGens, a random drafter, and scorers that were never trained."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch

from mmspec.imagegen.eagle.image_eagle import ImageEagle
from mmspec.imagegen.llamagen.captions import CaptionEncoder
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.zoo.architectures.clip import ClipSize, ImageClip, new_clip
from mmspec.zoo.architectures.object_detector import DetectorNetwork, DetectorSize, ObjectDetector
from tests.imagegen.llamagen.tiny import CAPTION, CLASS, text_encoder, tokenizer_model, transformer, word_tokenizer


def captioned(config: GPTConfig) -> LlamaGenPipeline:
    captions = CaptionEncoder(text_encoder(), word_tokenizer(), config.cls_token_num, cleaned=False)
    return LlamaGenPipeline(transformer(config), tokenizer_model(), captions, guidance_scale=2.0, top_k=0)


def classed() -> LlamaGenPipeline:
    """A class pipeline of 64 classes, as the zoo's, and 4x4 codes."""
    return LlamaGenPipeline(transformer(replace(CLASS, num_classes=64)), tokenizer_model(), guidance_scale=2.0, top_k=0)


@lru_cache(maxsize=1)
def tiny_image_zoo() -> dict[str, Any]:
    """What `mmspec.zoo.load` gives for each name."""
    pipeline = captioned(CAPTION)
    torch.manual_seed(0)
    clip = new_clip(ClipSize(space=8, width=4, layers=(1, 1, 1, 1), text_width=24, text_layers=1, text_heads=2)).eval()
    judge = DetectorNetwork(DetectorSize(half=8, quarter=8, eighth=8, blocks=1)).eval()
    eagle = ImageEagle(ImageEagle.sizes_for(pipeline.model, heads=4)).eval()
    return {
        "t2i": pipeline,
        "t2i/low": captioned(replace(CAPTION, block_size=4)),
        "t2i/eagle": eagle.requires_grad_(False),
        "c2i": classed(),
        "clip": ImageClip(clip.requires_grad_(False)),
        "image_judge": ObjectDetector(judge.requires_grad_(False)),
    }


def load(name: str) -> Any:
    """In the place of `mmspec.zoo.load`; the trained upsampler has no weights here."""
    if name not in tiny_image_zoo():
        raise ValueError(f"expected weights of {name}, got none, build them")
    return tiny_image_zoo()[name]


def use_tiny_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mmspec.zoo.load` hands out the tiny models during the test, and `names` has the upsampler too."""
    monkeypatch.setattr("mmspec.zoo.load", load)
    monkeypatch.setattr("mmspec.zoo.names", lambda: [*tiny_image_zoo(), "t2i/upsampler"])
