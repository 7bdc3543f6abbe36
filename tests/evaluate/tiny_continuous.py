"""A stand-in for the zoo's models of continuous tokens: random tiny ones, and scorers that were never trained."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from mmspec.imagegen import ContinuousARPipeline, MARPipeline
from mmspec.imagegen.continuous.causal.transformer import CausalConfig, CausalTransformer
from tests.evaluate.tiny_images import tiny_image_zoo
from tests.imagegen.continuous.tiny import SIZES, autoencoder, redrawn, transformer

CLASSES = 64  # as the zoo's
CAUSAL = CausalConfig(
    grid=4, token_dim=3, width=16, depth=1, heads=2, class_num=CLASSES, head_depth=1, head_width=12, head_steps=4
)


def masked(seed: int = 0, pixels: bool = True, classes: int = CLASSES) -> MARPipeline:
    """16 tokens of 4 denoising steps."""
    model = transformer(replace(SIZES, class_num=classes), seed)
    return MARPipeline(model, autoencoder() if pixels else None, guidance_scale=2.0, num_iter=4)


def captioned(seed: int = 0, steps: str = "ddim4") -> MARPipeline:
    """`masked` that reads the captions of the tiny text-to-image model too.   steps: of its head."""
    captions = tiny_image_zoo()["t2i"].model.captions
    sizes = dict(caption_dim=captions.encoder.config.d_model, buffer_size=captions.length, num_sampling_steps=steps)
    model = transformer(replace(SIZES, class_num=CLASSES, **sizes), seed)
    return MARPipeline(model, autoencoder(), captions, guidance_scale=2.0, num_iter=4)


def causal(seed: int = 0, std: float = 0.2) -> ContinuousARPipeline:
    """16 tokens of 4 denoising steps, the last of which is drawn."""
    return ContinuousARPipeline(redrawn(CausalTransformer(CAUSAL), seed, std), autoencoder(), guidance_scale=2.0)


@lru_cache(maxsize=1)
def tiny_continuous_zoo() -> dict[str, Any]:
    """What `mmspec.zoo.load` gives for each name."""
    images = tiny_image_zoo()
    return {
        "mar": captioned(),
        "mar/draft": captioned(1),
        "car": causal(),
        "car/draft": causal(1),
        "clip": images["clip"],
        "image_judge": images["image_judge"],
    }


def use_tiny_continuous(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mmspec.zoo.load` and `names` have the tiny models during the test."""
    monkeypatch.setattr("mmspec.zoo.load", lambda name: tiny_continuous_zoo()[name])
    monkeypatch.setattr("mmspec.zoo.names", lambda: [*tiny_continuous_zoo()])
