"""Helios of diffusers: chunks of 33 frames behind a history that is the coarser the longer ago."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mmspec.video.adapters.guidance import VideoGuidance
from mmspec.video.generation.noise import BlockNoise
from mmspec.video.generation.scheduled import Scheduled
from mmspec.video.model import Film
from mmspec.video.plan import BlockPlan
from mmspec.video.state import FilmState

if TYPE_CHECKING:
    from diffusers import HeliosTransformer3DModel


@dataclass(frozen=True, slots=True)
class HeliosVideo:
    """transformer: diffusers' own.   scheduler: that of the checkpoint, one that draws no noise.   steps: a chunk.
    history: latent frames of the coarse, the middle and the fine past; the film's first frame is always with them.
    plan: latent frames of a chunk, 9 in the published models.   name: what tables print.
    """

    transformer: HeliosTransformer3DModel
    scheduler: Any
    steps: int = 50
    plan: BlockPlan = BlockPlan(9)
    history: tuple[int, int, int] = (16, 2, 1)
    guidance: VideoGuidance = VideoGuidance()
    sampler: Scheduled | None = None
    name: str = "helios"

    @property
    def channels(self) -> int:
        return self.transformer.config.in_channels

    @property
    def device(self) -> torch.device:
        return self.transformer.device

    @property
    def dtype(self) -> torch.dtype:
        return self.transformer.dtype

    @property
    def latent_dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def passes(self) -> int:
        return self.steps * self.guidance.passes

    def open(self, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> HeliosState:
        """The state of B videos, see `BlockVideoModel`."""
        if self.sampler is None:
            return replace(self, sampler=self._sampler(size)).open(text, noise, size)
        return HeliosState(self, text, noise, size)

    def _sampler(self, size: tuple[int, int]) -> Scheduled:
        patch = self.transformer.config.patch_size
        tokens = self.plan.size * size[0] * size[1] // (patch[0] * patch[1] * patch[2])
        sigmas = np.linspace(0.999, 0.0, self.steps + 1)[:-1]
        return Scheduled(self.scheduler, self.steps, {"sigmas": sigmas, "mu": _mu(tokens, self.scheduler.config)})


def _mu(tokens: int, config: Mapping[str, Any]) -> float:
    """The shift of a picture of so many tokens, on the line through the two that the scheduler's config names."""
    few, many = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    return low + (tokens - few) * (high - low) / (many - few)


class HeliosState(FilmState):
    """Keeps nothing: the history is tokens of every pass, zeros before the film's beginning."""

    @torch.no_grad()
    def generate(self, film: Film) -> Tensor:
        video, block = self.video, len(film)
        text, history = self._text(block).to(video.device, video.dtype), self._history(film)

        def flow(x: Tensor, time: Tensor, until: Tensor | None) -> Tensor:
            def call(prompt: Tensor) -> Tensor:
                return video.transformer(
                    hidden_states=x.to(video.dtype), timestep=time[:, 0], encoder_hidden_states=prompt, **history,
                    return_dict=False,
                )[0]  # fmt: skip

            self.passes += video.guidance.passes - 1
            return video.guidance.flow(call, text)

        return self._draw(block, flow)

    def _history(self, film: Film) -> dict[str, Tensor]:
        """What the transformer is told of the past: three parts of it, and the places of all frames."""
        video, sizes = self.video, list(self.video.history)
        held = sum(sizes)
        past = torch.zeros(self.noise.batch, video.channels, held, *self.size, device=video.device)
        past = torch.cat([past, *(block.to(video.device, torch.float32) for block in film[-held:])], 2)
        long, middle, fine = past[:, :, -held:].split(sizes, 2)
        first = film[0][:, :, :1].to(fine) if film else torch.zeros_like(fine[:, :, :1])
        places = torch.arange(1 + held + video.plan.frames(len(film)), device=video.device)[None]
        at_first, at_long, at_middle, at_fine, at_block = places.split([1, *sizes, video.plan.frames(len(film))], 1)
        return {
            "indices_hidden_states": at_block,
            "indices_latents_history_short": torch.cat((at_first, at_fine), 1),
            "indices_latents_history_mid": at_middle,
            "indices_latents_history_long": at_long,
            "latents_history_short": torch.cat((first, fine), 2).to(video.dtype),
            "latents_history_mid": middle.to(video.dtype),
            "latents_history_long": long.to(video.dtype),
        }
