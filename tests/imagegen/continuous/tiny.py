"""Random tiny models of continuous tokens, no part of which is the identity."""

from __future__ import annotations

import torch
from torch import nn

from mmspec.imagegen.continuous.kl import KLConfig, build_kl
from mmspec.imagegen.continuous.mar.mar_config import MARConfig
from mmspec.imagegen.continuous.mar.pipeline import MARPipeline
from mmspec.imagegen.continuous.mar.transformer import MAR

SIZES = MARConfig(
    img_size=8,
    vae_stride=2,
    vae_embed_dim=3,
    encoder_embed_dim=16,
    encoder_depth=2,
    encoder_num_heads=2,
    decoder_embed_dim=24,
    decoder_depth=2,
    decoder_num_heads=4,
    class_num=5,
    buffer_size=3,
    diffloss_d=2,
    diffloss_w=20,
    num_sampling_steps="ddim4",
)
KL = KLConfig(
    embed_dim=3, ch=8, ch_mult=(1, 2), num_res_blocks=1, encoder_attn_resolutions=(4,), resolution=8, norm_groups=4
)


def redrawn(model: nn.Module, seed: int = 0, std: float = 0.3) -> nn.Module:
    """All parameters drawn anew, frozen: the usual start has zeros, which hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * std)
            if name.split(".")[-2:][0] in ("norm1", "norm2", "in_ln", "z_proj_ln") and name.endswith("weight"):
                value.add_(1)
    return model.eval().requires_grad_(False)


def transformer(config: MARConfig = SIZES, seed: int = 0) -> MAR:
    return redrawn(MAR(config), seed)


def autoencoder() -> nn.Module:
    torch.manual_seed(3)
    return build_kl(KL).eval().requires_grad_(False)


def pipeline(pixels: bool = False, **how) -> MARPipeline:
    return MARPipeline(transformer(), autoencoder() if pixels else None, **{"num_iter": 4, **how})
