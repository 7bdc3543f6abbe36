"""The zoo's autoencoder: a few steps of training, then what a reader of the files gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from mmspec import zoo
from mmspec.imagegen.continuous.kl import KLConfig
from mmspec.imagegen.continuous.kl import build_kl as new_autoencoder
from mmspec.zoo.architectures.object_detector import ObjectDetector
from mmspec.zoo.files.continuous import read_kl
from mmspec.zoo.training.continuous.build_kl import (
    FIRST_SEED,
    KlRecipe,
    build,
    kl_loss,
    new_model,
    train_kl,
    unit_scale,
)
from mmspec.zoo.training.image.recipe import ImageRecipe
from mmspec.zoo.world.image import HELD_OUT
from mmspec.zoo.world.pixels import image_arrays, sample_image_scenes, to_pixels

TINY = KLConfig(
    embed_dim=4, ch=8, ch_mult=(1, 1, 1, 1), num_res_blocks=1, encoder_attn_resolutions=(), resolution=64, norm_groups=4
)
RECIPE = KlRecipe(steps=3, batch=2, warmup=1, config=TINY)


@pytest.fixture(scope="module")
def judge() -> ObjectDetector:
    return zoo.load("image_judge")


def fresh() -> nn.Module:
    return new_model(RECIPE)


def test_the_autoencoder_trains_and_its_files_load(tmp_path: Path, judge: ObjectDetector) -> None:
    card = build(tmp_path / "kl", tmp_path / "work", judge, RECIPE, measured=8)
    assert card == json.loads((tmp_path / "kl" / "card.json").read_text())
    assert 0 < card["evaluation"]["psnr"] < 40 and card["evaluation"]["recognised_real"] > 0.9
    model = read_kl(tmp_path / "kl")
    assert model.config.scaling_factor == pytest.approx(card["scale"], rel=1e-5)
    assert KLConfig.of_model(model) == replace(TINY, scale=model.config.scaling_factor)


def test_scaled_latents_have_unit_variance(tmp_path: Path) -> None:
    model = fresh()
    train_kl(model, tmp_path, RECIPE)
    scale = unit_scale(model, count=8, batch=3)
    with torch.no_grad():
        law = model.encode(to_pixels(image_arrays(sample_image_scenes(FIRST_SEED, 8)))).latent_dist
        drawn = law.mean + law.std * torch.randn(500, *law.mean.shape)
    assert float((scale * drawn).std()) == pytest.approx(1, abs=0.01)


def test_a_stopped_run_goes_on_as_if_nothing_had_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parted = fresh(), fresh()
    train_kl(whole, tmp_path / "whole", RECIPE)
    calls = []

    def counted(*given):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return kl_loss(*given)

    keep_all = replace(RECIPE.plan(), save_every_s=0.0)
    monkeypatch.setattr(ImageRecipe, "plan", lambda recipe: keep_all)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("mmspec.zoo.training.continuous.build_kl.kl_loss", counted)
        train_kl(parted, tmp_path / "parted", RECIPE)
    again = new_autoencoder(TINY)  # another start, which the state replaces
    train_kl(again, tmp_path / "parted", RECIPE)
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_a_perfect_reconstruction_costs_only_its_divergence() -> None:
    class Perfect(nn.Module):
        """Decodes the pixels themselves; its posterior is N(3, 1)."""

        def encode(self, pixels):
            self.pixels = pixels
            self.latent_dist = self
            self.mean, self.logvar = torch.full((2, 4, 8, 8), 3.0), torch.zeros(2, 4, 8, 8)
            return self

        def decode(self, latents):
            self.sample = self.pixels
            return self

    pixels = torch.rand(2, 3, 64, 64)
    loss, notes = kl_loss(Perfect(), pixels, torch.randn(2, 4, 8, 8), replace(RECIPE, divergence=0.1), 3)
    assert float(loss) == pytest.approx(0.1 * 4.5) and notes["edges"] == 0


def test_held_out_pictures_are_not_trained_on() -> None:
    assert KlRecipe().seeds()["picture_seeds"][1] < HELD_OUT
    for wrong in ({"edges": -1}, {"edges_after": 0.0}):
        with pytest.raises(ValueError, match="expected weights"):
            KlRecipe(**wrong)


def test_posteriors_start_narrow_and_edges_come_later() -> None:
    with torch.no_grad():
        law = fresh().encode(torch.rand(2, 3, 64, 64)).latent_dist
    assert float(law.logvar.mean()) == pytest.approx(RECIPE.spread, abs=1)
    recipe = replace(RECIPE, steps=100, edges=0.5, edges_after=0.4)
    assert [recipe.edges_at(step) for step in (0, 20, 40, 99)] == pytest.approx([0, 0.25, 0.5, 0.5])
