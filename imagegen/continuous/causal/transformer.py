"""A GPT over continuous tokens: its sizes, the network, and its training loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mmspec.core.round.pool import SlotPool
from mmspec.imagegen.conditioning import empty_embedding
from mmspec.imagegen.continuous.head_sampling.head import Head
from mmspec.imagegen.continuous.head_sampling.sde_head import SDEHead, Velocity
from mmspec.imagegen.continuous.mar.diffusion import TRAINING_STEPS, diffusion
from mmspec.imagegen.continuous.mar.diffusion_head import DenoisingMLP, DiffusionHead
from mmspec.imagegen.continuous.mar.training import head_loss
from mmspec.imagegen.continuous.mar.transformer import MARMlp
from mmspec.io.validation import Size, check_fields, from_fields

HeadKind = Literal["diffusion", "sde"]


@dataclass(frozen=True, slots=True)
class CausalConfig:
    """The sizes of a causal model. No checkpoint of this kind is published; the names are ours."""

    grid: Size = 16  # tokens per side
    token_dim: Size = 16  # d
    width: Size = 768
    depth: Size = 12
    heads: Size = 12
    mlp_ratio: float = 4.0  # hidden width of the MLPs over the width
    class_num: Size = 1000  # labels are 0..class_num - 1, and -1 for no class
    head: HeadKind = "sde"  # "diffusion" is MAR's head, "sde" a flow whose steps have a scale from a table
    head_depth: Size = 6
    head_width: Size = 1024
    head_steps: int = 20  # denoising steps of a sample
    span: float = 1.0  # of the "sde" head, see `SDEHead`; at 1 its last step is drawn
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width % self.heads:
            raise ValueError(f"width: expected a multiple of heads {self.heads}, got {self.width}; change one")
        if int(self.width * self.mlp_ratio) < 1:
            raise ValueError(f"mlp_ratio: expected a hidden width of at least 1, got {self.mlp_ratio}; correct it")

    @property
    def tokens(self) -> int:
        """L, the number of tokens of an image."""
        return self.grid**2

    @classmethod
    def of(cls, config: CausalConfig | Mapping[str, Any]) -> CausalConfig:
        return from_fields(cls, config, (), "a causal model of continuous tokens")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor | None, cache: SlotPool | None, layer: int, causal: bool) -> Tensor:
        q, k, v = rearrange(self.qkv(x), "r n (three h d) -> three r h n d", three=3, h=self.heads)
        if cache is not None:
            k, v = cache.write(layer, k, v)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)
        return self.proj(rearrange(out, "r h n d -> r n (h d)"))


class CausalBlock(nn.Module):
    def __init__(self, config: CausalConfig):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attn = CausalAttention(config.width, config.heads)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MARMlp(config.width, int(config.width * config.mlp_ratio))

    def forward(self, x: Tensor, bias: Tensor | None, cache: SlotPool | None, layer: int, causal: bool) -> Tensor:
        x = x + self.attn(self.norm1(x), bias, cache, layer, causal)
        return x + self.mlp(self.norm2(x))


class CausalTransformer(nn.Module):
    """The causal variant of "Autoregressive Image Generation without Vector Quantization". z of position i sees the
    class (position 0) and the tokens before i (token i - 1 is at position i), and a head draws token i from it."""

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
        """Return the head with a number of denoising steps, None for the config's."""
        steps, config = self.config.head_steps if steps is None else steps, self.config
        if config.head == "diffusion":
            return DiffusionHead(self.net, diffusion(steps))
        if not str(steps).isdigit():
            raise ValueError(
                f"num_sampling_steps: expected a number of steps, got {steps!r}; respacings are for diffusion heads"
            )
        return SDEHead(self.net, config.token_dim, steps=int(steps), span=config.span, device=self.position.device)

    def embed(self, labels: Tensor) -> Tensor:
        """Return the embeddings [B, 1, width] of labels int64 [B], -1 for no class."""
        return self.class_embed(torch.where(labels < 0, self.config.class_num, labels))[:, None]

    def forward(
        self,
        x: Tensor,
        position: Tensor,  # int64 [R, N] or [N]
        bias: Tensor | None = None,  # additive [R or 1, 1, N, slots + N]; None shows all, or by `causal`
        cache: SlotPool | None = None,  # N new slots are written, which the caller counts
        causal: bool = False,
    ) -> Tensor:
        """Return z [R, N, width] of x [R, N, width], the output of `embed` or `token_embed`."""
        x = x + self.position[position]
        for number, block in enumerate(self.blocks):
            x = block(x, bias, cache, number, causal)
        return self.norm(x)

    def training_z(self, labels: Tensor, tokens: Tensor) -> Tensor:
        """Return z [B, L, width] of every token float [B, L, d], in a single causal pass."""
        x = torch.cat((self.embed(labels), self.token_embed(tokens[:, :-1])), 1)
        return self.forward(x, torch.arange(x.shape[1], device=x.device), causal=True)


def flow_loss(velocity: Velocity, tokens: Tensor, t: Tensor, noise: Tensor, z: Tensor) -> Tensor:
    """Return the squared error float [R] of the velocity at x_t = (1 - t) noise + t token [R, d], t float [R], given z
    [R, width]. "Flow Matching for Generative Modeling": `SDEHead` follows the mean of token - noise given x_t."""
    x = noise + t[:, None] * (tokens - noise)
    return (velocity(x, 1000 * t, z).float() - (tokens - noise)).square().mean(-1)


def causal_loss(
    model: CausalTransformer, tokens: Tensor, labels: Tensor, drawn: torch.Generator, copies: int = 4
) -> Tensor:
    """Return the loss of the head at every token, float [copies * B * L], of clean tokens float [B, L, d] and labels
    int64 [B], -1 for no class. `drawn` is the CPU generator; `copies` counts draws of time and noise per condition."""
    z, clean = (x.flatten(0, 1).repeat(copies, 1) for x in (model.training_z(labels, tokens), tokens))
    noise = torch.randn(clean.shape, generator=drawn).to(tokens.device)
    if model.config.head == "sde":
        t = torch.rand(len(clean), generator=drawn).to(tokens.device)
        return flow_loss(model.net, clean, t, noise, z)
    t = torch.randint(TRAINING_STEPS, (len(clean),), generator=drawn).to(tokens.device)
    return sum(head_loss(model.net, clean, t, noise, z))
