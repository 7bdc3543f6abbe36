"""Helios of diffusers: chunks of 33 frames, with a history that is coarser for older frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mmspec.io.validation import check_fields
from mmspec.video.adapters.guidance import VideoGuidance
from mmspec.video.adapters.schedulers import Pyramid, Scheduled, dynamic_shift
from mmspec.video.generation import BlockNoise
from mmspec.video.model import BlockPlan, CommittedBlocks, StatelessVideoState, TransformerVideo

if TYPE_CHECKING:
    from diffusers import HeliosTransformer3DModel


@dataclass(frozen=True, slots=True)
class HeliosVideo(TransformerVideo):
    """Helios as a block video model, sampled as in HeliosPipeline or HeliosPyramidPipeline.

    Args:
        transformer: The transformer of diffusers.
        scheduler: The checkpoint's scheduler, which must draw no noise.
        steps: Steps per chunk; or per stage of a pyramid, the smallest first, see `Pyramid`.
        plan: Latent frames of a chunk, 9 in the published models; the autoencoder decodes each chunk as its own video.
        history: Latent frames of the coarse, the middle and the fine past; the video's first frame is always added.
        guidance: `VideoGuidance`, or `ZeroStarGuidance` where the checkpoint's `is_cfg_zero_star` is set.
        doubled: Whether the first chunk takes twice the steps, for distilled models (`is_amplify_first_chunk`).
        sampler: Derived from the scheduler and the steps; leave it out.
        name: The name in tables.

    Raises:
        ValueError: The steps do not fit the scheduler, or the unchanged steps of the guidance exceed the first stage.
    """

    transformer: HeliosTransformer3DModel
    scheduler: Any
    steps: int | tuple[int, ...] = 50
    plan: BlockPlan = BlockPlan(9, apart=True)
    history: tuple[int, int, int] = (16, 2, 1)
    guidance: VideoGuidance = VideoGuidance()
    doubled: bool = False
    sampler: Scheduled | Pyramid | None = None
    name: str = "helios"

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.steps, int):
            first = self.steps
            if self.doubled:
                raise ValueError(
                    "doubled: expected the steps of each stage of a distilled model, got "
                    f"{self.steps} steps without stages; leave it out"
                )
        else:
            sampler = Pyramid(self.scheduler, self.steps, tuple(self.transformer.config.patch_size))
            replace(sampler, doubled=self.doubled)  # validates the doubled steps of the first chunk
            object.__setattr__(self, "sampler", sampler)
            first = sampler.steps[0]
        if self.guidance.still > first:
            raise ValueError(
                f"guidance: expected at most {first} unchanged steps, as many as the first stage has, got "
                f"{self.guidance.still}; lower them"
            )

    latent_dtype = torch.float32

    @property
    def passes(self) -> int:
        steps = self.steps if isinstance(self.steps, int) else sum(self.steps)
        return (steps - self.guidance.still) * self.guidance.passes

    def open(self, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> HeliosState:
        if self.sampler is None:
            return replace(self, sampler=self._sampler(size)).open(text, noise, size)
        if isinstance(self.sampler, Pyramid):
            cells = [side * 2 ** (len(self.sampler.steps) - 1) for side in self.transformer.config.patch_size]
            self._check_size(size, cells, "a patch of the first stage")
        return HeliosState(self, text, noise, size)

    def _sampler(self, size: tuple[int, int]) -> Scheduled:
        patch = self.transformer.config.patch_size
        tokens = self.plan.size * size[0] * size[1] // (patch[0] * patch[1] * patch[2])
        sigmas = np.linspace(0.999, 0.0, self.steps + 1)[:-1]
        return Scheduled(
            self.scheduler, self.steps, {"sigmas": sigmas, "mu": dynamic_shift(tokens, self.scheduler.config)}
        )


class HeliosState(StatelessVideoState):
    """A state without memory: the history is part of every pass, with zeros before the start of the video."""

    @torch.no_grad()
    def generate(self, video: CommittedBlocks) -> Tensor:
        model, block, done = self.model, len(video), 0
        text, history = self._text(block).to(model.device, model.dtype), self._history(video)

        def call(x: Tensor, time: Tensor, prompt: Tensor) -> Tensor:
            self.passes += 1
            return model.transformer(
                hidden_states=x.to(model.dtype),
                timestep=time[:, 0],
                encoder_hidden_states=prompt,
                **history,
                return_dict=False,
            )[0]

        def flow(x: Tensor, time: Tensor, until: Tensor | None) -> Tensor:
            nonlocal done
            self.passes, done = self.passes - 1, done + 1  # `call` counts the passes
            if done <= model.guidance.still:
                return torch.zeros_like(x, dtype=model.dtype)
            return model.guidance.flow(lambda prompt: call(x, time, prompt), text)

        first = replace(model.sampler, doubled=True) if model.doubled and not video else None
        return self._draw(block, flow, first)

    def _history(self, video: CommittedBlocks) -> dict[str, Tensor]:
        """Return the transformer's inputs for the past: three parts of it, and the positions of all frames."""
        model, sizes = self.model, list(self.model.history)
        held = sum(sizes)
        past = torch.zeros(self.noise.batch, model.channels, held, *self.size, device=model.device)
        past = torch.cat([past, *(block.to(model.device, torch.float32) for block in video[-held:])], 2)
        long, middle, fine = past[:, :, -held:].split(sizes, 2)
        first = video[0][:, :, :1].to(fine) if video else torch.zeros_like(fine[:, :, :1])
        places = torch.arange(1 + held + model.plan.frames(len(video)), device=model.device)[None]
        at_first, at_long, at_middle, at_fine, at_block = places.split([1, *sizes, model.plan.frames(len(video))], 1)
        return {
            "indices_hidden_states": at_block,
            "indices_latents_history_short": torch.cat((at_first, at_fine), 1),
            "indices_latents_history_mid": at_middle,
            "indices_latents_history_long": at_long,
            "latents_history_short": torch.cat((first, fine), 2).to(model.dtype),
            "latents_history_mid": middle.to(model.dtype),
            "latents_history_long": long.to(model.dtype),
        }
