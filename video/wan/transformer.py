"""The block-causal Wan transformer: it starts at any frame, each frame has its own timestep, and keys are cached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from diffusers.models.embeddings import TimestepEmbedding
from diffusers.models.normalization import FP32LayerNorm
from diffusers.models.transformers.transformer_wan import WanTimeTextImageEmbedding, WanTransformerBlock
from einops import rearrange
from torch import Tensor, nn

from mmspec.video.chunk_cache import AttentionSpan, ChunkCache
from mmspec.video.wan.wan_config import WanConfig

if TYPE_CHECKING:
    from diffusers.models.transformers.transformer_wan import WanAttention


_THETA = 10000.0


def rotary_table(head_dim: int, start: int, grid: tuple[int, int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (cos, sin), float32 [F * h * w, head_dim / 2], of a grid of frames, rows and columns from frame `start`.
    Pairs of channels belong to time, then rows, then columns. Angles are float64, as in the published tables, and the
    number of frames is unlimited."""
    side = 2 * (head_dim // 6)
    frames, rows, columns = grid
    angles = [
        _angles(start, frames, head_dim - 2 * side, device)[:, None, None].expand(-1, rows, columns, -1),
        _angles(0, rows, side, device)[None, :, None].expand(frames, -1, columns, -1),
        _angles(0, columns, side, device)[None, None].expand(frames, rows, -1, -1),
    ]
    angle = torch.cat(angles, -1).flatten(0, 2)
    return angle.cos().float(), angle.sin().float()


def _angles(start: int, count: int, dim: int, device: torch.device) -> Tensor:
    position = torch.arange(start, start + count, dtype=torch.float64, device=device)
    frequency = _THETA ** -(torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    return position[:, None] * frequency


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Return x [B, S, H, head_dim] with each pair of neighbouring channels rotated by its token's angle, in float32."""
    cos, sin = (part[:, None] for part in table)  # [S, 1, head_dim / 2]
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def sinusoid(timestep: Tensor, dim: int) -> Tensor:
    """Return float64 [..., dim] of timesteps [...]: cosines, then sines. As in the code of the causal checkpoints,
    timestep 937.5 must differ from 937, and float32 loses digits in the angles of large timesteps."""
    half = dim // 2
    frequency = torch.exp(-math.log(10000) / half * torch.arange(half, dtype=torch.float64, device=timestep.device))
    angle = timestep.double()[..., None] * frequency
    return torch.cat((angle.cos(), angle.sin()), -1)


Table = tuple[Tensor, Tensor]


def block_pass(
    block: WanTransformerBlock, x: Tensor, modulation: Tensor, table: Table, text: Table, cache: ChunkCache, layer: int
) -> Tensor:
    """Return x [B, S, dim] after one block; arithmetic outside attention and feed-forward is float32. `modulation` [B,
    F, 6, dim] is of each frame's timestep, and `text` the prompt's keys and values, [B, heads, L, head_dim]."""
    shift, scale, gate, later_shift, later_scale, later_gate = (
        block.scale_shift_table[:, None].float() + modulation.float()
    ).unbind(2)  # [B, F, dim] each
    y = modulated(block.norm1(x.float()), shift, scale).to(x.dtype)
    x = (x.float() + gated(self_attention(block.attn1, y, table, cache, layer), gate)).to(x.dtype)
    y = block.norm2(x.float()).to(x.dtype)
    x = x + cross_attention(block.attn2, y, text)
    y = modulated(block.norm3(x.float()), later_shift, later_scale).to(x.dtype)
    return (x.float() + gated(block.ffn(y), later_gate)).to(x.dtype)


def self_attention(attention: WanAttention, x: Tensor, table: Table, cache: ChunkCache, layer: int) -> Tensor:
    query, key, value = queries(attention, x), keys(attention, x), heads(attention, attention.to_v(x))
    query, key = (rotate(states, table).transpose(1, 2) for states in (query, key))
    out = [
        F.scaled_dot_product_attention(query[:, :, span.first : span.last], keys_in_place(span), span.values)
        for span in cache.write(layer, key, value.transpose(1, 2))
    ]
    return project(attention, torch.cat(out, 2))


def keys_in_place(span: AttentionSpan) -> Tensor:
    """Return the keys of a span, with sinks rotated in time to follow the window."""
    if not span.sunk:
        return span.keys
    table = rotary_table(span.keys.shape[3], span.moved, (1, 1, 1), span.keys.device)
    sinks = rotate(span.keys[:, :, : span.sunk].transpose(1, 2), table).transpose(1, 2)
    return torch.cat((sinks, span.keys[:, :, span.sunk :]), 2)


def cross_attention(attention: WanAttention, x: Tensor, text: Table) -> Tensor:
    """Attend from every token to the whole prompt with its padding, as in the training of the published models."""
    return project(attention, F.scaled_dot_product_attention(queries(attention, x).transpose(1, 2), *text))


def read_text(attention: WanAttention, text: Tensor) -> Table:
    """Return a prompt's keys and values [B, heads, L, head_dim] for a cross-attention, from text [B, L, dim]."""
    return tuple(part.transpose(1, 2) for part in (keys(attention, text), heads(attention, attention.to_v(text))))


def queries(attention: WanAttention, x: Tensor) -> Tensor:
    return heads(attention, attention.norm_q(attention.to_q(x)))


def keys(attention: WanAttention, x: Tensor) -> Tensor:
    return heads(attention, attention.norm_k(attention.to_k(x)))


def heads(attention: WanAttention, x: Tensor) -> Tensor:
    return x.unflatten(2, (attention.heads, -1))


def project(attention: WanAttention, x: Tensor) -> Tensor:
    return attention.to_out[0](x.transpose(1, 2).flatten(2))


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return x [B, F * T, dim], scaled and shifted by frame with [B, F, dim]."""
    return (x.unflatten(1, (shift.shape[1], -1)) * (1 + scale[:, :, None]) + shift[:, :, None]).flatten(1, 2)


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """Return x [B, F * T, dim] in float32, times a gate per frame [B, F, dim]."""
    return (x.float().unflatten(1, (gate.shape[1], -1)) * gate[:, :, None]).flatten(1, 2)


@dataclass(frozen=True, slots=True)
class PromptStates:
    """A prompt as the model reads it: keys and values of each cross-attention, [B, heads, L, head_dim]."""

    layers: tuple[tuple[Tensor, Tensor], ...]


class CausalWan(nn.Module):
    """Wan with block-causal attention: frames of a block see each other and all earlier blocks.

    Paper: "From Slow Bidirectional to Fast Autoregressive Video Diffusion Models" (CausVid). Submodules and state dict
    are those of diffusers' WanTransformer3DModel, and so is the output for a single block at frame 0. With
    `config.gate_value` it has the second time embedding of AnyFlow. It holds no state of a request.
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
        """The device of the weights."""
        return self.proj_out.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.proj_out.weight.dtype

    def read(self, text: Tensor) -> PromptStates:
        """Return a prompt from text states float [B, L, text_dim], with zeros where a row is shorter."""
        config, most = self.config, self.config.text_len or text.shape[1]
        if text.dim() != 3 or text.shape[2] != config.text_dim or text.shape[1] > most:
            raise ValueError(
                f"text: expected [B, L <= {most}, {config.text_dim}], got {tuple(text.shape)}; use the text "
                "encoder the model was trained with"
            )
        text = F.pad(text.to(self.device, self.dtype), (0, 0, 0, most - text.shape[1]))
        text = self.condition_embedder.text_embedder(text)
        return PromptStates(tuple(read_text(block.attn2, text) for block in self.blocks))

    def forward(
        self,
        latents: Tensor,
        timestep: Tensor,
        prompt: PromptStates,
        cache: ChunkCache | None = None,
        sizes: Sequence[int] | None = None,
        until: Tensor | None = None,
    ) -> Tensor:
        """Return the flow [B, C, F, H, W], noise - clean, of the frames after the cached frames; no cache starts at
        frame 0. Timesteps are float [B, F], 0 (clean) to 1000 (noise), never rounded; `until` are those at the end of
        the step, for flow maps. `sizes` are frames of each block, None for a single block; the result is that of a pass
        per block."""
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
        (_, h, w), (_, rows, columns) = grid, self.config.patch_size
        return rearrange(
            x, "b (f h w) (rows columns c) -> b c f (h rows) (w columns)", h=h, w=w, rows=rows, columns=columns
        )

    def times(self, timestep: Tensor, until: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (embedding [B, F, dim], modulation [B, F, 6, dim]) of timesteps float [B, F]."""
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
            raise ValueError(
                f"latents: expected [B, {channels}, F, H, W] with H and W multiples of {rows} and {columns}, got "
                f"{tuple(latents.shape)}; use the latents of the model's own autoencoder"
            )
        if timestep.shape != (latents.shape[0], latents.shape[2]):
            raise ValueError(
                f"timestep: expected a number per frame, {[latents.shape[0], latents.shape[2]]}, got "
                f"{list(timestep.shape)}; give every frame its own"
            )
        if sizes is not None and (sum(sizes) != latents.shape[2] or min(sizes) < 1):
            raise ValueError(
                f"sizes: expected blocks of at least one frame, {latents.shape[2]} together, got {list(sizes)}; "
                "correct them"
            )
