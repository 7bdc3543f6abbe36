"""SkyReels-V2 with diffusion forcing, of diffusers: a pass reads the whole window, clean frames and noisy ones."""

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
    """Block after block, as diffusers' pipeline does where a block waits for the one before (`ar_step` of all its steps).

    transformer: diffusers' own, with a block-causal mask of the plan's blocks.   sampler: `Scheduled` with its scheduler.
    window: latent frames of a pass at most, those of the block included; the oldest whole blocks go first.
    context_noise: thousandths of noise in the clean frames, and their timestep; 20 is what its authors take for long videos.
    fps: what the model is told; it tells 16 from all others.   There is no cache: a pass costs what its window costs, and
    drafting with it saves only what its size saves.   Raises ValueError for a transformer with another mask.
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
            raise ValueError(f"plan: expected blocks of the transformer's {masked} frames each, more than one, got "
                             f"{self.plan}; set num_frame_per_block in its config to the size of the blocks")  # fmt: skip
        if self.window < 2 * self.plan.size:
            raise ValueError(f"window: expected room for a block of {self.plan.size} frames and one before it, got "
                             f"{self.window}; widen it")  # fmt: skip

    latent_dtype = torch.float32

    @property
    def passes(self) -> int:
        return self.sampler.passes * self.guidance.passes

    def open(self, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> SkyReelsState:
        """The state of B videos, see `BlockVideoModel`."""
        return SkyReelsState(self, text, noise, size)


class SkyReelsState(StatelessVideoState):
    """Keeps nothing: the context is read in every pass."""

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
                    hidden_states=x.to(model.dtype), timestep=time, encoder_hidden_states=prompt,
                    enable_diffusion_forcing=True, fps=fps, return_dict=False,
                )[0][:, :, frames:]  # fmt: skip

            self.passes += model.guidance.passes - 1
            return model.guidance.flow(call, text)

        return self._draw(block, flow)

    def _context(self, video: CommittedBlocks) -> Tensor | None:
        """The last blocks that fit the window, with their noise: that of the block to be drawn, so no decision moves it."""
        model, block = self.model, len(video)
        room = (model.window - model.plan.size) // model.plan.size
        late = [one.to(model.device, model.latent_dtype) for one in video[max(0, block - room) :]]
        if not late:
            return None
        latents, share = torch.cat(late, 2), 0.001 * model.context_noise
        if not share:
            return latents
        drawn = self.noise.at(block, model.sampler.passes, latents.shape[1:])
        return latents * (1 - share) + share * drawn.to(latents.device)
