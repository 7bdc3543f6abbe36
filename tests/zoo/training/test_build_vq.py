"""The zoo's tokenizer of pictures: a few steps of training, then what a reader of the files gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmspec.imagegen.llamagen.vq import VQConfig, VQModel
from mmspec.zoo.training.image.build_vq import VqRecipe, batch_arrays, build, restart_codes

TINY_VQ = VQConfig(
    codebook_size=64,
    encoder_ch_mult=(1, 1, 1),
    decoder_ch_mult=(1, 1, 1),
    z_channels=8,
    ch=8,
    num_res_blocks=1,
    norm_groups=2,
)


@pytest.mark.whole
def test_the_tokenizer_trains_and_its_files_load(tmp_path: Path) -> None:
    recipe = VqRecipe(steps=3, plain_steps=1, batch=1)
    card = build(tmp_path / "vq", tmp_path / "work", recipe, config=TINY_VQ, measured=4)
    assert card == json.loads((tmp_path / "vq" / "card.json").read_text())
    assert 5 < card["evaluation"]["psnr"] < 40 and 0 < card["evaluation"]["codes_used"] <= 1
    model = VQModel(VQConfig.of(json.loads((tmp_path / "vq" / "config.json").read_text())))
    model.load_state_dict(load_file(tmp_path / "vq" / "model.safetensors"))
    assert model.config == TINY_VQ


def test_batches_of_the_tokenizer() -> None:
    recipe = VqRecipe(batch=2, whole_every=4)
    assert [batch_arrays(step, recipe).shape for step in (0, 3)] == [(8, 32, 32, 3), (2, 64, 64, 3)]
    assert (batch_arrays(1, recipe) == batch_arrays(1, recipe)).all()


def test_dead_codes_come_back() -> None:
    torch.manual_seed(0)
    model = VQModel(TINY_VQ)
    assert restart_codes(model, 1, VqRecipe(), dead_only=False) == 64
    torch.testing.assert_close(model.quantize.embedding.weight.norm(dim=-1), torch.ones(64))
    with torch.no_grad():
        model.quantize.embedding.weight[:40] = model.quantize.embedding.weight[0]
    assert restart_codes(model, 2, VqRecipe()) >= 39
