"""The public autoencoder's own numbers."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.continuous.kl import kl_from_state_dict
from tests.imagegen.continuous.kl.reference import decode, encode
from tests.parity import case

CLOSE = dict(atol=2e-5, rtol=1e-4)
CONFIGS = [
    None,
    {
        "embed_dim": 4,
        "ch": 32,
        "ch_mult": [1, 1, 2, 2],
        "num_res_blocks": 1,
        "encoder_attn_resolutions": [16],
        "decoder_attn_resolutions": [],
    },
    {
        "encoder_and_decoder": {
            "ch": 32,
            "ch_mult": [1, 1, 2, 2],
            "num_res_blocks": 1,
            "resolution": 128,
            "z_channels": 4,
        },
        "embed_dim": 4,
        "encoder_attn_resolutions": [16],
        "decoder_attn_resolutions": [],
        "stride": 8,
    },
]


@torch.no_grad()
@pytest.mark.parametrize("config", CONFIGS, ids=("weights", "published", "nested"))
def test_moments_and_pictures_match_the_public_code(config: dict | None) -> None:
    public = case("continuous_video/c_kl_vae_tiny")
    state = {name[2:]: value for name, value in public.items() if name.startswith("w.")}
    model = kl_from_state_dict({"model": state}, config)
    assert model.config.scaling_factor == 0.2325
    law = model.encode(public["image"]).latent_dist
    torch.testing.assert_close(model.encoder(public["image"]), public["encoder_out"], **CLOSE)
    torch.testing.assert_close(law.parameters, public["moments"], **CLOSE)
    torch.testing.assert_close(law.mean, public["mean"], **CLOSE)
    torch.testing.assert_close(law.logvar, public["logvar"], **CLOSE)
    drawn = law.mean + law.std * public["noise"]
    torch.testing.assert_close(drawn, public["posterior_sample"], **CLOSE)
    torch.testing.assert_close(drawn * 0.2325, public["latent_scaled"], **CLOSE)
    torch.testing.assert_close(model.decode(public["latent_scaled"] / 0.2325).sample, public["decoded_sample"], **CLOSE)
    torch.testing.assert_close(model.decode(public["mean"]).sample, public["decoded_mode"], **CLOSE)


@torch.no_grad()
def test_the_test_reference_matches_the_public_code() -> None:
    public = case("continuous_video/c_kl_vae_tiny")
    state = {name[2:]: value for name, value in public.items() if name.startswith("w.")}
    torch.testing.assert_close(encode(public["image"], state, 4), public["moments"], **CLOSE)
    torch.testing.assert_close(decode(public["mean"], state, 4), public["decoded_mode"], **CLOSE)
