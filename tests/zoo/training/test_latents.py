"""Latents of a fixed set: made once, kept, and made anew for another autoencoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmspec.imagegen.continuous.kl import KLConfig, build_kl
from mmspec.zoo.training.continuous import recipe
from mmspec.zoo.training.continuous.recipe import encode_images
from mmspec.zoo.training.training_sets import ImageLatents, fingerprint

SIZES = KLConfig(
    embed_dim=3,
    ch=4,
    ch_mult=(1, 1),
    num_res_blocks=1,
    encoder_attn_resolutions=(),
    resolution=8,
    norm_groups=2,
    scale=0.5,
)


def autoencoder(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return build_kl(SIZES).eval()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    monkeypatch.setattr(recipe, "CHUNK", 4)
    monkeypatch.setattr(recipe, "BATCH", 3)
    return []


def test_existing_latents_are_kept_and_missing_latents_computed(tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    def pixels(first: int, count: int) -> Tensor:
        asked.append((first, count))
        return torch.stack([torch.full((3, 8, 8), (first + i) / 10 - 0.5) for i in range(count)])

    vae = autoencoder()
    made = encode_images(vae, tmp_path, pixels, 6, "latents")
    assert asked == [(0, 3), (3, 1), (4, 2)] and made.mean.shape == (6, 16, 3) and made.mean.dtype == torch.float16
    with torch.no_grad():
        law = vae.encode(pixels(5, 1)).latent_dist
    torch.testing.assert_close(made.mean[5].float(), 0.5 * law.mean[0].flatten(1).T, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(made.std[5].float(), 0.5 * law.std[0].flatten(1).T, atol=1e-3, rtol=1e-3)
    asked.clear()
    again = encode_images(vae, tmp_path, pixels, 6, "latents")
    assert not asked and torch.equal(again.mean, made.mean) and torch.equal(again.std, made.std)
    (tmp_path / "latents_000000.safetensors").unlink()
    assert torch.equal(encode_images(vae, tmp_path, pixels, 5, "latents").mean, made.mean[:5])
    assert asked == [(0, 3), (3, 1), (4, 1)]  # the second file has a picture too many
    asked.clear()
    vae.register_to_config(scaling_factor=0.6)
    assert len(encode_images(vae, tmp_path, pixels, 6, "latents")) == 6 and len(asked) == 3
    asked.clear()
    assert (
        not torch.equal(encode_images(autoencoder(1), tmp_path, pixels, 6, "latents").mean, made.mean)
        and len(asked) == 3
    )


def test_another_scale_is_another_autoencoder() -> None:
    one, other = autoencoder(), autoencoder()
    assert fingerprint(one, 0.5) == fingerprint(other, 0.5) != fingerprint(other, 0.6)
    assert fingerprint(one, 0.5) != fingerprint(autoencoder(1), 0.5)


def test_an_epoch_takes_every_picture_once_and_draws_from_its_posterior() -> None:
    mean = torch.arange(6.0).view(6, 1, 1).expand(6, 400, 5).half()
    stored = ImageLatents(mean, torch.full_like(mean, 0.25))
    steps = [stored.batch(step, 2) for step in range(6)]
    for epoch in (steps[:3], steps[3:]):
        assert sorted(i for taken, _ in epoch for i in taken.tolist()) == list(range(6))
    assert [taken.tolist() for taken, _ in steps[:3]] != [taken.tolist() for taken, _ in steps[3:]]
    for taken, tokens in steps:
        torch.testing.assert_close(tokens.mean((1, 2)), taken.float(), atol=0.02, rtol=0)
        assert float((tokens - taken[:, None, None]).std()) == pytest.approx(0.25, abs=0.01)
    assert all(torch.equal(a, b) for a, b in zip(stored.batch(4, 2), steps[4], strict=True))
