"""LlamaGen's transformer: a Llama over image tokens with rotary positions on the grid, of one frame or of several."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.round.pool import SlotPool
from mmspec.imagegen.conditioning import CaptionEmbedder, LabelEmbedder, empty_embedding, prefix_bias
from mmspec.imagegen.grid_rope import grid_table
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig


def apply_rotary(x: Tensor, turn: Tensor) -> Tensor:
    """Return x [R, N, heads, head_dim] with pairs (2j, 2j + 1) turned in float32 by complex64 [R or 1, N, 1, pairs]."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


class GridRotary:
    """The rotation table per device. It is no buffer: `module.to(dtype)` would round it, and files lack it."""

    def __init__(self, grid: int, head_dim: int, prefix: int, base: float, frames: int = 1, time_pairs: int = 0):
        self.sizes = (grid, head_dim, prefix, base, frames, time_pairs)
        self._tables: dict[torch.device, Tensor] = {}

    def at(self, position: Tensor) -> Tensor:
        """Return complex64 [R or 1, N, 1, pairs] at positions int64 [R, N] or [N], counted from the prefix's start."""
        table = self._tables.get(position.device)
        if table is None:
            with torch.device("cpu"), torch.inference_mode(False):
                table = grid_table(*self.sizes).to(position.device)
            self._tables[position.device] = table
        turn = table[position].unsqueeze(-2)
        return turn if position.dim() == 2 else turn[None]


class LlamaGenAttention(nn.Module):
    """Self-attention with queries, keys and values from a single projection, stacked in this order."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.n_head, config.kv_heads, config.head_dim
        self.grouped = self.heads != self.kv_heads
        self.wqkv = nn.Linear(config.dim, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def forward(
        self, x: Tensor, turn: Tensor, bias: Tensor | None, cache: SlotPool | None, layer: int, causal: bool
    ) -> Tensor:
        rows, count, dim = x.shape
        qkv = self.wqkv(x).view(rows, count, -1, self.head_dim)
        # queries and keys turn together, in a single multiplication per layer
        turned = apply_rotary(qkv[:, :, : -self.kv_heads], turn).transpose(1, 2)
        q, k = turned[:, : self.heads], turned[:, self.heads :]
        v = qkv[:, :, -self.kv_heads :].transpose(1, 2)
        if cache is not None:
            k, v = cache.write(layer, k, v)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=self.grouped)
        return self.wo(out.transpose(1, 2).reshape(rows, count, dim))


class LlamaGenFeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)).mul(self.w3(x)))


class LlamaGenBlock(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention = LlamaGenAttention(config)
        self.feed_forward = LlamaGenFeedForward(config.dim, config.hidden)
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)

    def forward(
        self, x: Tensor, turn: Tensor, bias: Tensor | None, cache: SlotPool | None, layer: int, causal: bool
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turn, bias, cache, layer, causal)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """LlamaGen's transformer under the published names; the caller provides positions and cache. In 16-bit types a
    norm's result is rounded once, after its weight is applied; the public code rounds before and after. `null_rows`
    rows of features for no caption are stored, None for the length of the prefix."""

    def __init__(self, config: GPTConfig, null_rows: int | None = None):
        super().__init__()
        self.config = config
        self.cls_embedding = (
            LabelEmbedder(config.num_classes, config.dim, config.null_class)
            if config.model_type == "c2i"
            else CaptionEmbedder(
                config.caption_dim, config.dim, config.cls_token_num if null_rows is None else null_rows
            )
        )
        self.tok_embeddings = empty_embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(LlamaGenBlock(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.rope = GridRotary(
            config.grid, config.head_dim, config.cls_token_num, config.rope_base, config.frames, config.time_pairs
        )
        self.apply(_initialise)

    def condition(self, inputs: Tensor, drop: Tensor | None = None) -> Tensor:
        """Return the prefix [B, P, dim] of labels int64 [B] ("c2i") or caption features [B, P, caption_dim] ("t2i").
        Rows of `drop` bool [B] get the unconditional prefix instead."""
        return self.cls_embedding(inputs, drop)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., dim] of tokens int64 [...]."""
        return self.tok_embeddings(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [..., vocab_size] of the states that `forward` returned."""
        return self.output(hidden).float()

    def forward(
        self,
        embeds: Tensor,
        position: Tensor,
        bias: Tensor | None = None,
        cache: SlotPool | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Return the states [R, N, dim] behind the final norm, of embeds [R, N, dim] at positions int64 [R, N] or [N]
        from the prefix's start. `bias` [R or 1, 1, N, width + N] is in the weights' dtype; None shows all tokens, or
        with `causal` those up to the position. N new slots of `cache` are written, which the caller counts."""
        if causal and (bias is not None or (cache is not None and cache.width)):
            raise ValueError(
                "causal: expected an empty cache and no bias, got a filled cache or a bias; pass a bias without causal"
            )
        turn = self.rope.at(position)
        x = embeds
        for number, block in enumerate(self.layers):
            x = block(x, turn, bias, cache, number, causal)
        return self.norm(x)

    def training_logits(
        self, condition: Tensor, tokens: Tensor, mask: Tensor | None = None, drop: Tensor | None = None
    ) -> Tensor:
        """Return float32 [B, T, vocab_size], the predictions of all tokens int64 [B, T] in a causal pass. `mask` bool
        [B, P] is True at real caption tokens, also of a dropped row, as in generation; `drop` bool [B] as in
        `condition`."""
        x = torch.cat([self.condition(condition, drop), self.embed(tokens[:, :-1])], 1)
        length, prefix = x.shape[1], self.config.cls_token_num
        bias = None if mask is None else prefix_bias(mask, length, x.dtype)
        hidden = self.forward(x, torch.arange(length, device=x.device), bias, causal=bias is None)
        return self.logits(hidden[:, prefix - 1 :])


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding) and not module.weight.is_meta:
        nn.init.normal_(module.weight, std=0.02)
