"""SkyReels-V2 with diffusion forcing, of diffusers: each pass reads the whole window of clean and noisy frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.io.validation import check_fields
from mmspec.video.adapters.guidance import VideoGuidance
from mmspec.video.generation import BlockNoise, Sampler
from mmspec.video.model import BlockPlan, CommittedBlocks, StatelessVideoState, TransformerVideo

if TYPE_CHECKING:
    from diffusers import SkyReelsV2Transformer3DModel


@dataclass(frozen=True, slots=True)
class SkyReelsVideo(TransformerVideo):
    """SkyReels-V2 as a block video model: each block waits for the previous block (diffusers' `ar_step` at all steps).

    There is no cache, so a pass costs as much as its window, and a drafter saves only by its smaller size.

    Args:
        transformer: The transformer of diffusers, with a block-causal mask of the plan's blocks.
        sampler: `Scheduled` with its scheduler.
        plan: The frames of the blocks.
        window: The most latent frames of a pass, with those of the block; the oldest whole blocks are dropped first.
        context_noise: Thousandths of noise in the clean frames, and their timestep; the authors use 20 for long videos.
        guidance: Classifier-free guidance.
        fps: The frame rate that the model is conditioned on; it separates 16 from all other rates.
        name: The name in tables.

    Raises:
        ValueError: The transformer has another mask, or the window is too small.
    """

    transformer: SkyReelsV2Transformer3DModel
    sampler: Sampler
    plan: BlockPlan = BlockPlan(5)
    window: int = 25
    context_noise: float = 0.0
    guidance: VideoGuidance = VideoGuidance()
    fps: int = 24
    name: str = "skyreels"

    def __post_init__(self) -> None:
        check_fields(self)
        masked = self.transformer.config.num_frame_per_block
        if self.plan.first not in (None, self.plan.size) or masked != self.plan.size or masked == 1:
            raise ValueError(
                f"plan: expected blocks of the transformer's {masked} frames each, more than one, got "
                f"{self.plan}; set num_frame_per_block in its config to the size of the blocks"
            )
        if self.window < 2 * self.plan.size:
            raise ValueError(
                f"window: expected room for a block of {self.plan.size} frames and the previous block, got "
                f"{self.window}; widen it"
            )

    latent_dtype = torch.float32

    @property
    def passes(self) -> int:
        return self.sampler.passes * self.guidance.passes

    def open(self, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> SkyReelsState:
        return SkyReelsState(self, text, noise, size)


class SkyReelsState(StatelessVideoState):
    @torch.no_grad()
    def generate(self, video: CommittedBlocks) -> Tensor:
        model, block = self.model, len(video)
        context = self._context(video)
        frames = 0 if context is None else context.shape[2]
        text = self._text(block).to(model.device, model.dtype)
        fps = [int(model.fps != 16)] * self.noise.batch

        def flow(x: Tensor, time: Tensor, until: Tensor | None) -> Tensor:
            if context is not None:
                x = torch.cat((context, x), 2)
                time = torch.cat((self._time(model.context_noise, frames), time), 1)

            def call(prompt: Tensor) -> Tensor:
                return model.transformer(
                    hidden_states=x.to(model.dtype),
                    timestep=time,
                    encoder_hidden_states=prompt,
                    enable_diffusion_forcing=True,
                    fps=fps,
                    return_dict=False,
                )[0][:, :, frames:]

            self.passes += model.guidance.passes - 1
            return model.guidance.flow(call, text)

        return self._draw(block, flow)

    def _context(self, video: CommittedBlocks) -> Tensor | None:
        """Return the last blocks that fit the window, with noise that is reserved for the next block."""
        model, block = self.model, len(video)
        room = (model.window - model.plan.size) // model.plan.size
        late = [latents.to(model.device, model.latent_dtype) for latents in video[max(0, block - room) :]]
        if not late:
            return None
        latents, share = torch.cat(late, 2), 0.001 * model.context_noise
        if not share:
            return latents
        drawn = self.noise.at(block, model.sampler.passes, latents.shape[1:])
        return latents * (1 - share) + share * drawn.to(latents.device)
