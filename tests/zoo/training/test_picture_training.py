"""The zoo's tokenizer of pictures, its CLIP and its judge: a few steps of training, then what a reader of the files gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from mmspec.imagegen.llamagen.vq import VQConfig, VQModel
from mmspec.zoo.architectures.clip import ClipSize, new_clip, token_ids
from mmspec.zoo.architectures.judge import Found, ImageJudge, Reader, objects_of
from mmspec.zoo.files.registry import LOADERS
from mmspec.zoo.training import build_clip as clip_training
from mmspec.zoo.training import build_judge as judge_training
from mmspec.zoo.training import build_vq as vq_training
from mmspec.zoo.training.build_clip import ClipRecipe, settle_norms, told_apart
from mmspec.zoo.training.build_judge import JudgeRecipe, cell_labels
from mmspec.zoo.training.build_vq import VqRecipe, batch_arrays, restart_codes
from mmspec.zoo.training.picture_batches import picture_arrays, sample_pictures
from mmspec.zoo.world.prompts import prompt_of
from mmspec.zoo.world.words import COLORS, SHAPES

TINY_VQ = VQConfig(codebook_size=64, encoder_ch_mult=(1, 1, 1), decoder_ch_mult=(1, 1, 1), z_channels=8, ch=8,
                   num_res_blocks=1, norm_groups=2)  # fmt: skip


def test_the_tokenizer_trains_and_its_files_load(tmp_path: Path) -> None:
    recipe = VqRecipe(steps=3, plain_steps=1, batch=1)
    card = vq_training.build(tmp_path / "vq", tmp_path / "work", recipe, config=TINY_VQ, measured=4)
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


def test_recipes_are_checked() -> None:
    for make in (
        lambda: VqRecipe(steps=40),
        lambda: ClipRecipe(batch=1),
        lambda: JudgeRecipe(steps=0),
        lambda: ClipSize(width=3),
    ):
        with pytest.raises(ValueError, match="expected"):
            make()


def test_clip_trains_and_its_files_load(tmp_path: Path) -> None:
    size = ClipSize(space=16, width=4, layers=(1, 1, 1, 1), text_width=24, text_layers=1, text_heads=2)
    card = clip_training.build(tmp_path, tmp_path / "work", ClipRecipe(steps=2, batch=4), size=size, measured=1)
    assert card["evaluation"]["text_top1"] <= 1 and card["training"]["loss"] > 0
    clip = LOADERS["clip"](tmp_path)
    pictures = sample_pictures(0, 3)
    arrays = picture_arrays(pictures)
    features = clip.encode_images(torch.from_numpy(arrays))
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(clip.encode_images([Image.fromarray(one) for one in arrays]), features)
    prompts = [prompt_of(picture, 0) for picture in pictures]
    paired = (features * clip.encode_texts(prompts)).sum(-1)
    torch.testing.assert_close(clip.score(torch.from_numpy(arrays), prompts), paired)


def test_the_text_tower_reads_up_to_the_end_token() -> None:
    ids = token_ids(["a red star", "a red star " * 20])
    assert ids.shape == (2, 32)
    assert (ids == 1).any(-1).all() and (ids[0, 4:] == 0).all()


def test_pairs_that_ask_for_the_same_are_not_contrasted() -> None:
    pictures = [sample_pictures(seed, 1)[0] for seed in (1, 1, 2)]
    apart = told_apart(pictures, ["x", "x", "x"])
    assert apart.diagonal().all() and not apart[0, 1] and apart[0, 2]


def test_the_norms_of_clip_are_a_function_of_its_parameters() -> None:
    clip = new_clip(ClipSize(space=16, width=4, layers=(1, 1, 1, 1), text_width=24, text_layers=1, text_heads=2))
    recipe, states = ClipRecipe(steps=1, batch=2), []
    for _ in range(2):
        settle_norms(clip, recipe, "cpu")
        states.append({name: value.clone() for name, value in clip.named_buffers() if "running" in name})
    assert states[0] and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_cells_are_labelled_where_objects_are() -> None:
    pictures = sample_pictures(0, 12)
    presence, color, shape = cell_labels(pictures)
    for row, picture in enumerate(pictures):
        assert (presence[row] == 1).sum() == len(picture.items)
        for item in picture.items:
            cell = (row, int((item.y + item.pixels / 2) / 8), int((item.x + item.pixels / 2) / 8))
            assert presence[cell] == 1
            assert color[cell] == tuple(COLORS).index(item.color) and shape[cell] == SHAPES.index(item.shape)


def test_readings_of_one_object_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.full((1, 17, 8, 8), -9.0)
    logits[0, 1], logits[0, 9] = 1.0, 1.0  # everything reads as a circle of the first color
    for cell, value in {(2, 2): 4.0, (2, 3): 3.0, (4, 2): 2.0, (2, 6): 1.0}.items():
        logits[0, 0, cell[0], cell[1]] = value
    reader = Reader()
    monkeypatch.setattr(reader, "forward", lambda pixels: logits)
    (found,) = ImageJudge(reader).read([Image.new("RGB", (64, 64))])
    assert [(one.row, one.column) for one in found] == [(2, 2), (2, 6)]


def test_the_judge_trains_and_its_files_load(tmp_path: Path) -> None:
    card = judge_training.build(tmp_path, tmp_path / "work", JudgeRecipe(steps=2, batch=4), measured=4)
    assert card["parameters"] <= 150_000 and 0 <= card["evaluation"]["objects_right"] <= 1
    judge = LOADERS["image_judge"](tmp_path)
    arrays = picture_arrays(sample_pictures(0, 3))
    images = [Image.fromarray(one) for one in arrays]
    assert judge.read(images) == judge.read(torch.from_numpy(arrays))


def test_agreement_counts_each_found_object_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, images = ImageJudge(Reader()), [Image.new("RGB", (64, 64))] * 2
    seen = [[Found("star", "red", 1, 1)], [Found("ring", "blue", 2, 2), Found("heart", "cyan", 5, 5)]]
    monkeypatch.setattr(ImageJudge, "read", lambda self, images: seen)
    asked = ["a red star above a red star", "a small cyan heart and a blue ring on an olive background"]
    assert judge.agreement(images, asked) == pytest.approx(3 / 4)
    picture = sample_pictures(3, 1)[0]
    assert objects_of(picture) == [(item.shape, item.color) for item in picture.items]
    with pytest.raises(ValueError, match="one entry per image"):
        judge.agreement(images, asked[:1])
    with pytest.raises(ValueError, match="name an object"):
        judge.agreement(images, ["", "a star"])
