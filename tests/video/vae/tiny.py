"""Small random Wan autoencoders of each kind: as Wan 2.1 has it, with patches, and with the residual paths of Wan 2.2."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan

CHANNELS = 3
MEAN, STD = [0.3, -0.2, 0.1], [2.0, 0.5, 1.5]
KINDS = {
    "wan 2.1": {"dim_mult": [1, 2, 2, 4], "temperal_downsample": [False, True, True]},
    "patches": {"dim_mult": [1, 2, 2], "temperal_downsample": [True, True], "patch_size": 2},
    "wan 2.2": {
        "dim_mult": [1, 2, 4, 4],
        "temperal_downsample": [False, True, True],
        "patch_size": 2,
        "is_residual": True,
    },
    "two frames a latent": {"dim_mult": [1, 2], "temperal_downsample": [True]},
}


def autoencoder(kind: str = "patches") -> AutoencoderKLWan:
    torch.manual_seed(3)
    config = KINDS[kind]
    pixels = 3 * config.get("patch_size", 1) ** 2
    model = AutoencoderKLWan(
        base_dim=4, z_dim=CHANNELS, num_res_blocks=1, latents_mean=MEAN, latents_std=STD, in_channels=pixels,
        out_channels=pixels, **config,
    )  # fmt: skip
    for value in model.parameters():  # the usual start leaves norms and biases without effect
        value.data.add_(torch.randn_like(value) * 0.05)
    return model.eval()
