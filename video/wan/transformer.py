"""The Wan transformer, block-causal: it starts at any frame, each frame has its own time, and keys and values are cached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from diffusers.models.embeddings import TimestepEmbedding
from diffusers.models.normalization import FP32LayerNorm
from diffusers.models.transformers.transformer_wan import WanTimeTextImageEmbedding, WanTransformerBlock
from torch import Tensor, nn

from mmspec.video.chunk_cache import ChunkCache
from mmspec.video.wan.blocks import block_pass, modulated, read_text
from mmspec.video.wan.config import WanConfig
from mmspec.video.wan.rotary import rotary_table
from mmspec.video.wan.times import sinusoid


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model reads it: keys and values of every cross-attention, [B, heads, L, head_dim], computed once. A new
    prompt is a new one of these, so nothing of the old one can stay."""

    layers: tuple[tuple[Tensor, Tensor], ...]


class CausalWan(nn.Module):
    """Wan with the attention of "From Slow Bidirectional to Fast Autoregressive Video Diffusion Models" (CausVid): frames of a
    block see each other and all blocks before.

    Its parts and its state dict are those of diffusers' WanTransformer3DModel, and so is its output for one block at frame 0;
    with `config.gate_value` it has the second time embedding of AnyFlow's models. Nothing of a request is kept on it.
    """

    def __init__(self, config: WanConfig):
        super().__init__()
        self.config, dim = config, config.dim
        self.patch_embedding = nn.Conv3d(config.in_channels, dim, config.patch_size, config.patch_size)
        self.condition_embedder = WanTimeTextImageEmbedding(dim, config.freq_dim, 6 * dim, config.text_dim)
        if config.gate_value is not None:
            self.condition_embedder.delta_embedder = TimestepEmbedding(config.freq_dim, dim)
        self.blocks = nn.ModuleList(
            WanTransformerBlock(
                dim,
                config.ffn_dim,
                config.num_attention_heads,
                config.qk_norm,
                config.cross_attn_norm,
                config.eps,
            )
            for _ in range(config.num_layers)
        )
        self.norm_out = FP32LayerNorm(dim, config.eps, elementwise_affine=False)
        self.proj_out = nn.Linear(dim, config.out_channels * math.prod(config.patch_size))
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self.proj_out.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.proj_out.weight.dtype

    def read(self, text: Tensor) -> Prompt:
        """A prompt from the text encoder's states, float [B, L, text_dim], with zeros where a row is shorter.

        Raises ValueError for another width and for more than `text_len` states.
        """
        config, most = self.config, self.config.text_len or text.shape[1]
        if text.dim() != 3 or text.shape[2] != config.text_dim or text.shape[1] > most:
            raise ValueError(f"text: expected [B, L <= {most}, {config.text_dim}], got {tuple(text.shape)}; use the text "
                             "encoder the model was trained with")  # fmt: skip
        text = F.pad(text.to(self.device, self.dtype), (0, 0, 0, most - text.shape[1]))
        text = self.condition_embedder.text_embedder(text)
        return Prompt(tuple(read_text(block.attn2, text) for block in self.blocks))

    def forward(
        self, latents: Tensor, timestep: Tensor, prompt: Prompt, cache: ChunkCache | None = None,
        sizes: Sequence[int] | None = None, until: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The flow [B, C, F, H, W], noise - clean, of the frames that follow those of the cache.

        latents: [B, C, F, H, W].   timestep: float [B, F], 0 (clean) to 1000 (noise), never rounded.
        prompt: of `read`.   cache: whose committed frames are attended to; the pass is staged in it. None starts at frame 0.
        sizes: frames of each block of the pass; None for one block. Several are what one pass each would give.
        until: float [B, F], where the step ends, for models of flow maps; None for where it starts.
        Raises ValueError for shapes that do not fit.
        """
        self._check(latents, timestep, sizes)
        cache = ChunkCache() if cache is None else cache
        x = self.patch_embedding(latents.to(self.dtype))  # [B, dim, F, h, w]
        grid = tuple(x.shape[2:])
        x = x.flatten(2).transpose(1, 2).contiguous()
        table = rotary_table(self.config.attention_head_dim, cache.frames, grid, x.device)
        time, modulation = self.times(timestep, until)
        cache.begin(sizes or (grid[0],))
        for layer, block in enumerate(self.blocks):
            x = block_pass(block, x, modulation, table, prompt.layers[layer], cache, layer)
        shift, scale = (self.scale_shift_table[:, None].float() + time[:, :, None].float()).unbind(2)
        x = self.proj_out(modulated(self.norm_out(x.float()), shift, scale).to(x.dtype))
        return _unpatched(x, grid, self.config.patch_size)

    def times(self, timestep: Tensor, until: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(embedding [B, F, dim], modulation [B, F, 6, dim]) of timesteps float [B, F]."""
        parts, config = self.condition_embedder, self.config
        time = parts.time_embedder(sinusoid(timestep, config.freq_dim).to(self.dtype))
        if config.gate_value is not None:
            until = timestep if until is None else until
            delta = until if config.deltatime_type == "r" else timestep - until
            delta = parts.delta_embedder(sinusoid(delta, config.freq_dim).to(self.dtype))
            time = (1 - config.gate_value) * time + config.gate_value * delta
        return time, parts.time_proj(parts.act_fn(time)).unflatten(-1, (6, -1))

    def _check(self, latents: Tensor, timestep: Tensor, sizes: Sequence[int] | None) -> None:
        channels, (_, rows, columns) = self.config.in_channels, self.config.patch_size
        if latents.dim() != 5 or latents.shape[1] != channels or latents.shape[3] % rows or latents.shape[4] % columns:
            raise ValueError(f"latents: expected [B, {channels}, F, H, W] with H and W multiples of {rows} and {columns}, got "
                             f"{tuple(latents.shape)}; use the latents of the model's own autoencoder")  # fmt: skip
        if timestep.shape != (latents.shape[0], latents.shape[2]):
            raise ValueError(f"timestep: expected one a frame, {[latents.shape[0], latents.shape[2]]}, got "
                             f"{list(timestep.shape)}; give every frame its own")  # fmt: skip
        if sizes is not None and (sum(sizes) != latents.shape[2] or min(sizes) < 1):
            raise ValueError(f"sizes: expected blocks of at least one frame, {latents.shape[2]} together, got {list(sizes)}; "
                             "correct them")  # fmt: skip


def _unpatched(x: Tensor, grid: tuple[int, int, int], patch: tuple[int, int, int]) -> Tensor:
    """[B, C, F, H, W] of tokens [B, F * h * w, p_h * p_w * C]."""
    x = x.reshape(x.shape[0], *grid, *patch[1:], -1)  # [B, F, h, w, p_h, p_w, C]
    return x.permute(0, 6, 1, 2, 4, 3, 5).flatten(3, 4).flatten(4, 5)
