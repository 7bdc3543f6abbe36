"""Small random video models whose parts all matter: what is left out of a pass shows in its output."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.round.keys import Keys
from mmspec.video import BlockPlan, Cached, CausalWan, ChunkCache, FewStep, KeyedBlockNoise, WanConfig, WanVideo

SIZES = WanConfig(
    num_attention_heads=2,
    attention_head_dim=12,
    ffn_dim=32,
    num_layers=2,
    in_channels=3,
    out_channels=3,
    text_dim=10,
    freq_dim=16,
)
GRID = (4, 4)  # rows and columns of a latent frame: 4 tokens
PLAN = BlockPlan(2)


@lru_cache
def wan(seed: int = 0, **changed: object) -> CausalWan:
    config = WanConfig(**{**SIZES.to_dict(), **changed})
    model = CausalWan(config).eval().requires_grad_(False)
    return randomised(model, seed)


def randomised(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    drawn = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        spread = 1.4 / value[0].numel() ** 0.5 if name.endswith("weight") and value.dim() > 1 else 0.3
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        value.data = centre + spread * torch.randn(value.shape, generator=drawn)
    return model


def text(seed: int = 0, rows: int = 1) -> Tensor:
    return torch.randn(rows, 5, SIZES.text_dim, generator=torch.Generator().manual_seed(100 + seed))


def video(context: object = None, model: CausalWan | None = None, plan: BlockPlan = PLAN, **how: object) -> WanVideo:
    how.setdefault("sampler", FewStep((1000, 500)))
    return WanVideo(model or wan(), context or Cached(), plan=plan, **how)


def noise(seed: int = 0, rows: int = 1) -> KeyedBlockNoise:
    return KeyedBlockNoise(Keys.of(seed, rows))


def opened(context: object = None, model: CausalWan | None = None, **how: object):  # noqa: ANN201  any context's state
    return video(context, model, **how).open(text(), noise(), GRID)


def film(blocks: int, seed: int = 0, plan: BlockPlan = PLAN) -> list[Tensor]:
    """Latents that no model drew."""
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(1, SIZES.in_channels, plan.frames(b), *GRID, generator=drawn) for b in range(blocks)]


def apart(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def counters(cache: ChunkCache, tokens: int) -> list[int]:
    """Tokens ever written and tokens in use, staged ones included: the two counters of Self-Forcing."""
    return [(cache.frames + cache.staged) * tokens, cache.layer(0)[0].shape[2]]
