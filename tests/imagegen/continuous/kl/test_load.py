"""Published autoencoders load into diffusers' class and come back; what does not fit is refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mmspec.imagegen import kl_from_state_dict
from mmspec.imagegen.continuous.kl import KLConfig, build_kl, kl_to_state_dict
from tests.imagegen.continuous.kl.reference import decode, encode
from tests.imagegen.continuous.published import AUTOENCODER, autoencoder_shapes
from tests.imagegen.continuous.tiny import KL, autoencoder

MORE = KLConfig(
    embed_dim=2,
    ch=4,
    ch_mult=(1, 3, 2),
    num_res_blocks=2,
    encoder_attn_resolutions=(8, 4),
    norm_groups=2,
    decoder_attn_resolutions=(8,),
    resolution=16,
    scale=0.5,
)


@pytest.mark.parametrize("told", (True, False))
def test_the_published_autoencoder_loads_and_comes_back(told: bool) -> None:
    shapes = autoencoder_shapes()
    assert len(shapes) == AUTOENCODER["num_keys"]
    state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    model = kl_from_state_dict(state, AUTOENCODER["config"] if told else None)
    assert {name: list(value.shape) for name, value in kl_to_state_dict(model).items()} == shapes
    assert sum(value.numel() for value in model.parameters()) == AUTOENCODER["num_parameters"]
    assert KLConfig.of_model(model) == KLConfig()


@torch.no_grad()
@pytest.mark.parametrize("config", (KL, MORE), ids=("small", "with attention on both sides"))
def test_outputs_match_the_published_autoencoder(config: KLConfig) -> None:
    torch.manual_seed(1)
    made = build_kl(config)
    for value in made.parameters():  # the usual start leaves norms and biases without effect
        value.add_(torch.randn_like(value) * 0.1)
    state = kl_to_state_dict(made)
    model, levels = kl_from_state_dict(state, config), len(config.ch_mult)
    images, latents = torch.randn(2, 3, 16, 16), torch.randn(2, config.embed_dim, 4, 4)
    found = model.encode(images).latent_dist.parameters
    torch.testing.assert_close(found, encode(images, state, levels, config.norm_groups), atol=1e-5, rtol=1e-5)
    pictures = decode(latents, state, levels, config.norm_groups)
    torch.testing.assert_close(model.decode(latents).sample, pictures, atol=1e-5, rtol=1e-5)
    assert KLConfig.of_model(model) == config
    again = kl_to_state_dict(model)
    assert again.keys() == state.keys() and all(torch.equal(value, again[name]) for name, value in state.items())


def test_config_fields_known_from_the_weights_are_optional() -> None:
    state = kl_to_state_dict(build_kl(MORE))
    config = KLConfig.of_model(kl_from_state_dict(state, {"norm_groups": 2, "scale": 0.5, "resolution": 16}))
    assert config == MORE
    extra = {**state, "loss.discriminator.weight": torch.zeros(3)}
    assert KLConfig.of_model(kl_from_state_dict({"state_dict": extra}, MORE)) == MORE


def without(state: dict, key: str) -> dict:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (lambda sd: without(sd, "post_quant_conv.bias"), {}, r"got no post_quant_conv\.bias"),
        (lambda sd: without(sd, "encoder.down.1.attn.0.q.weight"), {}, r"got no encoder\.down\.1\.attn\.0\.q\.weight"),
        (lambda sd: {**sd, "decoder.more": torch.zeros(1)}, {}, r"unknown decoder\.more"),
        (
            lambda sd: {**sd, "encoder.mid.attn_1.q.weight": torch.zeros(16, 16)},
            {},
            r"attn_1\.q\.weight of shape \(16, 16\)",
        ),
        (lambda sd: sd, {"ch_mult": [1, 2, 2]}, r"got no encoder\.down\.1\.downsample.*, encoder\.down\.2\."),
        (lambda sd: sd, {"encoder_attn_resolutions": []}, r"unknown encoder\.down\.1\.attn"),
        (lambda sd: sd, {"z_channels": 5}, "z_channels: expected embed_dim 3, got 5"),
        (lambda sd: sd, {"ch": "8"}, "ch: expected int, got '8'"),
        (lambda sd: sd, {"norm_groups": 3}, "ch_mult: expected widths that are multiples of 3"),
        (lambda sd: sd, {"scale": 0.0}, "scale: expected above 0"),
        (lambda sd: sd, {"depth": 3}, r"\['depth'\]"),
        (lambda sd: {}, {}, "got nothing"),
        (lambda sd: "kl16.ckpt", {}, "mmspec convert kl16.ckpt FOLDER --kind mar"),
    ],
)
def test_mismatched_weights_and_configs_are_refused(change: Callable, config: dict, message: str) -> None:
    state = change(kl_to_state_dict(autoencoder()))
    with pytest.raises(ValueError, match=message) as caught:
        kl_from_state_dict(state, {"norm_groups": 4, "resolution": 8, "encoder_attn_resolutions": [4], **config})
    assert "\n" not in str(caught.value)
