"""The smaller model of a video decoding: its checks against the target."""

from __future__ import annotations

from typing import Any

from mmspec.core.round.rules.base import UnsupportedCombination
from mmspec.video.decoding.request import VideoRequest
from mmspec.video.model import BlockVideoModel
from mmspec.video.prompt_encoder import PromptReader


def model_of(drafter: Any) -> BlockVideoModel:
    return getattr(drafter, "model", drafter)


def reader_of(drafter: Any, request: VideoRequest) -> PromptReader:
    """A pipeline reads prompts with its own text encoder."""
    encoder = getattr(drafter, "encoder", None)
    return request.read if encoder is None or encoder is request.read.encoder else PromptReader(encoder)


def check_drafter(drafter: Any, target: BlockVideoModel, request: VideoRequest) -> None:
    model = model_of(drafter)
    if not hasattr(model, "open") or not hasattr(model, "plan"):
        raise UnsupportedCombination(
            f"drafter: expected a block video model or a pipeline of one, got {model!r}; load one"
        )
    if model.channels != target.channels:
        raise UnsupportedCombination(
            f"drafter: expected latents of {target.channels} channels as the target's, got {model.channels}; take a "
            "model of the same autoencoder"
        )
    if (vae := getattr(drafter, "vae", None)) is not None:
        request.vae.layout.check(vae.layout, "drafter")
