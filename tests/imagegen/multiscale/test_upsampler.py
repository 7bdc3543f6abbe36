"""Upsamplers: shapes, rows that do not look ahead, and a training that learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mmspec.imagegen.llamagen.vq import VQConfig, VQModel
from mmspec.imagegen.multiscale.upsamplers import LatentUpsampler, PixelUpsampler, UpsamplerConfig
from mmspec.zoo.training.image.build_upsampler import UpsamplerRecipe, evaluate_upsampler, train_upsampler


@pytest.fixture(scope="module")
def vq() -> VQModel:
    torch.manual_seed(0)
    config = VQConfig(
        codebook_size=32,
        codebook_embed_dim=4,
        encoder_ch_mult=(1, 1),
        decoder_ch_mult=(1, 1),
        z_channels=32,
        ch=32,
        num_res_blocks=1,
    )
    model = VQModel(config).eval()
    torch.nn.init.normal_(model.quantize.embedding.weight)
    return model


def blots(first: int, count: int) -> np.ndarray:
    """Pictures of 16 x 16 pixels in four flat quarters."""
    rng = np.random.default_rng(first)
    return rng.integers(0, 256, (count, 2, 2, 3)).repeat(8, 1).repeat(8, 2).astype(np.uint8)


def test_pixels_up_and_down(vq: VQModel) -> None:
    upsampler = PixelUpsampler.of(vq)
    codes = torch.randint(32, (3, 2, 4), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        up = upsampler.up(codes)
        assert up.shape == (3, 4, 8) and up.dtype == torch.long and int(up.max()) < 32
        assert upsampler.down(up).shape == codes.shape
    with pytest.raises(ValueError, match="scale"):
        PixelUpsampler(vq.decode_code, vq.encode, 1)


def test_rows_do_not_look_ahead() -> None:
    torch.manual_seed(1)
    model = LatentUpsampler.of(torch.randn(8, 3), width=8, blocks=2)
    codes = torch.randint(8, (2, 5, 4))
    changed = codes.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % 8
    assert torch.equal(model(codes)[:, :, :6], model(changed)[:, :, :6])
    assert torch.equal(model.up(codes[:, :3]), model.up(codes)[:, :6])


def test_training_learns_and_survives_saving(vq: VQModel, tmp_path: Path) -> None:
    recipe = UpsamplerRecipe(width=16, blocks=1, steps=30, lr=1e-2, batch=2)
    before = LatentUpsampler.of(vq.codebook(), width=16, blocks=1)
    trained, figures = train_upsampler(vq, tmp_path / "run", recipe, pictures=blots)
    first, last = (evaluate_upsampler(model, vq, 16, blots) for model in (before, trained))
    assert last["l1"] < first["l1"] and last["hit"] >= first["hit"] and figures["loss"] > 0
    assert all(parameter.requires_grad for parameter in vq.parameters())
    trained.save_pretrained(tmp_path / "saved")
    loaded = LatentUpsampler.from_pretrained(tmp_path / "saved")
    codes = torch.randint(32, (2, 3, 3))
    assert torch.equal(loaded.up(codes), trained.up(codes)) and loaded.scale == 2
    with pytest.raises(ValueError, match="scale"):
        UpsamplerConfig(8, 2, scale=1)
