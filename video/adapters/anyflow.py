"""AnyFlow FAR of diffusers: flow maps over chunks, with older chunks as compressed keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.video.generation import BlockNoise, FlowMap
from mmspec.video.model import BlockPlan, CommittedBlocks, TransformerVideo, VideoState

if TYPE_CHECKING:
    from diffusers import AnyFlowFARTransformer3DModel

KV = dict[int, dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class AnyFlowVideo(TransformerVideo):
    """AnyFlow FAR as a block video model. Its attention is that of diffusers, which needs torch's flex attention.

    nvidia/AnyFlow-FAR-Wan2.1-1.3B and -14B share latents, so the small model can draft for the large model.

    Args:
        transformer: The transformer of diffusers.
        sampler: Any number of steps; `until=False` hides the end of a step from the model, as `use_mean_velocity` of
            the diffusers pipeline.
        plan: The frames of the blocks; the published models are trained with 1, 3, 3, ... frames.
        name: The name in tables.
    """

    transformer: AnyFlowFARTransformer3DModel
    sampler: FlowMap = FlowMap(4)
    plan: BlockPlan = BlockPlan(3, first=1)
    name: str = "anyflow"

    def open(self, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> AnyFlowState:
        self._check_size(size, self.transformer.config.compressed_patch_size, "a compressed patch")
        return AnyFlowState(self, text, noise, size)


class AnyFlowState(VideoState):
    """The state of a request; `watermark` counts the blocks whose keys and values are held. The model compresses older
    chunks anew, so a read is one pass over all blocks so far, and lazy reading costs a pass per run of drafts."""

    def __init__(self, model: AnyFlowVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]):
        super().__init__(model, text, noise, size)
        self._held: tuple[int, Tensor | None, KV] = (0, None, self._empty(0))

    @property
    def watermark(self) -> int:
        return self._held[0]

    @torch.no_grad()
    def generate(self, video: CommittedBlocks) -> Tensor:
        self.absorb(video)
        block, text = len(video), self._prompt(len(video))
        sizes = list(self.model.plan.sizes(0, block + 1))

        def flow(x: Tensor, time: Tensor, until: Tensor | None) -> Tensor:
            out = self.model.transformer(
                hidden_states=x.transpose(1, 2),
                timestep=time,
                r_timestep=time if until is None else until,
                encoder_hidden_states=text,
                chunk_partition=sizes,
                kv_cache=self._held[2],
                kv_cache_flag={"num_cached_chunks": block, "is_cache_step": False},
                return_dict=False,
            )
            return out[0].transpose(1, 2)

        return self._draw(block, flow)

    @torch.no_grad()
    def absorb(self, video: CommittedBlocks) -> None:
        """Read the whole video in one pass, if it has grown or the next block's prompt, on which all keys depend, has
        changed."""
        self._check_read(video)
        text = self._text(len(video))
        if not video or (self._held[0] == len(video) and self._held[1] is text):
            return
        self.passes, self.context_passes = self.passes + 1, self.context_passes + 1
        latents = torch.cat([block.to(self.model.device) for block in video], 2)
        time, kv = self._time(0.0, latents.shape[2]), self._empty(len(video))
        self.model.transformer(
            hidden_states=latents.to(self.model.dtype).transpose(1, 2),
            timestep=time,
            r_timestep=time,
            encoder_hidden_states=self._prompt(len(video)),
            chunk_partition=list(self.model.plan.sizes(0, len(video))),
            kv_cache=kv,
            kv_cache_flag={"num_cached_chunks": len(video) - 1, "is_cache_step": True},
            return_dict=False,
        )
        self._held = len(video), text, kv

    def snapshot(self) -> Any:
        return self._held

    def restore(self, snapshot: Any) -> None:
        self._held = snapshot

    def _prompt(self, block: int) -> Tensor:
        return self._text(block).to(self.model.device, self.model.dtype)

    def _empty(self, blocks: int) -> KV:
        """Return new buffers for the keys and values of `blocks` blocks; the held buffers never change."""
        config, plan = self.model.transformer.config, self.model.plan
        full = min(blocks, config.full_chunk_limit - 1)
        parts = (
            ("full_cache", blocks - full, blocks, config.patch_size),
            ("compressed_cache", 0, blocks - full, config.compressed_patch_size),
        )
        caches: KV = {layer: {} for layer in range(config.num_layers)}
        for name, first, last, (_, rows, columns) in parts:
            tokens = sum(plan.sizes(first, last)) * (self.size[0] // rows) * (self.size[1] // columns)
            shape = (2, self.noise.batch, config.num_attention_heads, tokens, config.attention_head_dim)
            for cache in caches.values():
                cache[name] = torch.zeros(shape, device=self.model.device, dtype=self.model.dtype)
        return caches
