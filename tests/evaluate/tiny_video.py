"""A stand-in for the zoo's video models: random tiny ones, and a reward that follows from the pixels."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from mmspec.imagegen.llamagen.captions import CaptionEncoder
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.video import BlockVideoPipeline, WanVideo
from tests.evaluate.tiny_images import tiny_image_zoo
from tests.imagegen.llamagen.tiny import CAPTION, text_encoder, tokenizer_model, transformer, word_tokenizer
from tests.video.decoding.tiny import SIZE, bright, encode, vae
from tests.video.test_pipeline import encoder
from tests.video.tiny import video, wan

BLOCKS = 4  # of two latent frames: 3 and 4, 4, 4 pixel frames


def blocks(seed: int = 0, encoded: Any = encode) -> BlockVideoPipeline:
    """8x8 pixels.   seed: of the weights."""
    model: WanVideo = video(model=wan(seed))
    return BlockVideoPipeline(model, vae(), encoded, size=SIZE, blocks=BLOCKS)


def saved(folder: Path, seed: int = 0) -> Path:
    """A folder with such a pipeline and a text encoder of its own."""
    blocks(seed, encoder()).save_pretrained(folder)
    return folder


def tokens() -> LlamaGenPipeline:
    """Three frames of 2x2 codes, from prompts."""
    config = replace(CAPTION, block_size=4, frames=3, time_pairs=2)
    captions = CaptionEncoder(text_encoder(), word_tokenizer(), config.cls_token_num, cleaned=False)
    return LlamaGenPipeline(transformer(config), tokenizer_model(), captions, guidance_scale=2.0, top_k=0)


@lru_cache(maxsize=1)
def tiny_video_zoo() -> dict[str, Any]:
    """What `mmspec.zoo.load` gives for each name."""
    return {
        "video": blocks(),
        "video/draft": blocks(1),
        "video/reward": bright,
        "video/tokens": tokens(),
        "clip": tiny_image_zoo()["clip"],
    }


def use_tiny_video(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mmspec.zoo.load` and `names` have the tiny models during the test."""
    monkeypatch.setattr("mmspec.zoo.load", lambda name: tiny_video_zoo()[name])
    monkeypatch.setattr("mmspec.zoo.names", lambda: [*tiny_video_zoo()])
