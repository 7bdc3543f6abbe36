"""A GPT over continuous tokens: a class, then vectors in raster order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.pool import SlotPool
from mmspec.imagegen.continuous.causal.config import CausalConfig
from mmspec.imagegen.continuous.head import Head
from mmspec.imagegen.continuous.mar.blocks import Mlp
from mmspec.imagegen.continuous.mar.diffusion import diffusion
from mmspec.imagegen.continuous.mar.diffusion_head import DenoisingMLP, DiffusionHead
from mmspec.imagegen.continuous.sde_head import SDEHead
from mmspec.imagegen.llamagen.conditioning import empty_embedding


class CausalAttention(nn.Module):
    """What is not ahead, or what a bias shows; keys and values go into a cache."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor | None, cache: SlotPool | None, layer: int, causal: bool) -> Tensor:
        rows, count, width = x.shape
        q, k, v = self.qkv(x).view(rows, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.write(layer, k, v)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)
        return self.proj(out.transpose(1, 2).reshape(rows, count, width))


class CausalBlock(nn.Module):
    """Both halves with the norm before them."""

    def __init__(self, config: CausalConfig):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attn = CausalAttention(config.width, config.heads)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = Mlp(config.width, int(config.width * config.mlp_ratio))

    def forward(self, x: Tensor, bias: Tensor | None, cache: SlotPool | None, layer: int, causal: bool) -> Tensor:
        x = x + self.attn(self.norm1(x), bias, cache, layer, causal)
        return x + self.mlp(self.norm2(x))


class CausalTransformer(nn.Module):
    """The causal variant of "Autoregressive Image Generation without Vector Quantization": z of position i is read behind
    the class and the tokens before i, and a head draws token i from it.

    The caller keeps positions and cache. Position 0 is the class, position i the token i - 1.
    """

    def __init__(self, config: CausalConfig):
        super().__init__()
        self.config = config
        self.class_embed = empty_embedding(config.class_num + 1, config.width)  # the last row is no class
        self.token_embed = nn.Linear(config.token_dim, config.width)
        self.position = nn.Parameter(torch.empty(config.tokens, config.width))
        self.blocks = nn.ModuleList(CausalBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        out = config.token_dim * (2 if config.head == "diffusion" else 1)
        self.net = DenoisingMLP(config.token_dim, out, config.width, config.head_depth, config.head_width)
        for table in (self.class_embed.weight, self.position):
            if not table.is_meta:
                nn.init.normal_(table, std=0.02)

    def head(self, steps: str | int | None = None) -> Head:
        """The head with as many denoising steps, None for the config's. Raises ValueError as the heads do."""
        steps, config = self.config.head_steps if steps is None else steps, self.config
        if config.head == "diffusion":
            return DiffusionHead(self.net, diffusion(steps))
        if not str(steps).isdigit():
            raise ValueError(
                f"num_sampling_steps: expected a number of steps, got {steps!r}; respacings are for diffusion heads"
            )
        return SDEHead(self.net, config.token_dim, steps=int(steps), span=config.span, device=self.position.device)

    def embed(self, labels: Tensor) -> Tensor:
        """[B, 1, width] of labels int64 [B], -1 for no class."""
        return self.class_embed(torch.where(labels < 0, self.config.class_num, labels))[:, None]

    def forward(
        self,
        x: Tensor,
        position: Tensor,
        bias: Tensor | None = None,
        cache: SlotPool | None = None,
        causal: bool = False,
    ) -> Tensor:
        """z [R, N, width]. x: [R, N, width] of `embed` or `token_embed`.   position: int64 [R, N] or [N].

        bias: additive [R or 1, 1, N, slots + N]; None shows everything, or with `causal` what is not ahead.
        cache: gets the N new slots written (the caller counts them); None for a pass on its own.
        """
        x = x + self.position[position]
        for number, block in enumerate(self.blocks):
            x = block(x, bias, cache, number, causal)
        return self.norm(x)

    def training_z(self, labels: Tensor, tokens: Tensor) -> Tensor:
        """z [B, L, width] of every token float [B, L, d], in one causal pass."""
        x = torch.cat((self.embed(labels), self.token_embed(tokens[:, :-1])), 1)
        return self.forward(x, torch.arange(x.shape[1], device=x.device), causal=True)
