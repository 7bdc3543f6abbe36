"""A Wan block over frames that each have their own time, on diffusers' modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.video.chunk_cache import ChunkCache, Span
from mmspec.video.wan.rotary import rotary_table, rotate

if TYPE_CHECKING:
    from diffusers.models.transformers.transformer_wan import WanAttention, WanTransformerBlock

Table = tuple[Tensor, Tensor]


def block_pass(
    block: WanTransformerBlock, x: Tensor, modulation: Tensor, table: Table, text: Table, cache: ChunkCache, layer: int
) -> Tensor:
    """x [B, S, dim] after one block.

    modulation: [B, F, 6, dim], of each frame's time.   table: rotary, of the tokens.   text: the prompt's keys and values
    [B, heads, L, head_dim].   Arithmetic outside attention and the feed-forward part is float32.
    """
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
    """Each block of the pass attends to itself, to those before it, and to what the cache holds."""
    query, key, value = queries(attention, x), keys(attention, x), heads(attention, attention.to_v(x))
    query, key = (rotate(one, table).transpose(1, 2) for one in (query, key))
    out = [
        F.scaled_dot_product_attention(query[:, :, span.first : span.last], keys_in_place(span), span.values)
        for span in cache.write(layer, key, value.transpose(1, 2))
    ]
    return project(attention, torch.cat(out, 2))


def keys_in_place(span: Span) -> Tensor:
    """What a block attends to, with sinks that have followed the window: turned once more, in time alone."""
    if not span.sunk:
        return span.keys
    table = rotary_table(span.keys.shape[3], span.moved, (1, 1, 1), span.keys.device)
    sinks = rotate(span.keys[:, :, : span.sunk].transpose(1, 2), table).transpose(1, 2)
    return torch.cat((sinks, span.keys[:, :, span.sunk :]), 2)


def cross_attention(attention: WanAttention, x: Tensor, text: Table) -> Tensor:
    """Every token attends to the whole prompt, its padding included, as published models were trained to."""
    return project(attention, F.scaled_dot_product_attention(queries(attention, x).transpose(1, 2), *text))


def read_text(attention: WanAttention, text: Tensor) -> Table:
    """A prompt's keys and values [B, heads, L, head_dim] for a cross-attention. text: [B, L, dim]."""
    return tuple(one.transpose(1, 2) for one in (keys(attention, text), heads(attention, attention.to_v(text))))


def queries(attention: WanAttention, x: Tensor) -> Tensor:
    return heads(attention, attention.norm_q(attention.to_q(x)))


def keys(attention: WanAttention, x: Tensor) -> Tensor:
    return heads(attention, attention.norm_k(attention.to_k(x)))


def heads(attention: WanAttention, x: Tensor) -> Tensor:
    return x.unflatten(2, (attention.heads, -1))


def project(attention: WanAttention, x: Tensor) -> Tensor:
    return attention.to_out[0](x.transpose(1, 2).flatten(2))


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x [B, F * T, dim] scaled and shifted per frame. shift, scale: [B, F, dim]."""
    return (x.unflatten(1, (shift.shape[1], -1)) * (1 + scale[:, :, None]) + shift[:, :, None]).flatten(1, 2)


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """x [B, F * T, dim] in float32 times a gate per frame [B, F, dim]."""
    return (x.float().unflatten(1, (gate.shape[1], -1)) * gate[:, :, None]).flatten(1, 2)
