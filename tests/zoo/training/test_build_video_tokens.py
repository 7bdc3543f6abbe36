"""A few steps of the zoo's model of video codes: what comes out of a build, and that it goes on where it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.imagegen import SCD
from mmspec.imagegen.llamagen.captions import CaptionEncoder
from mmspec.zoo.architectures.caption_encoder import new_encoder
from mmspec.zoo.files import registry
from mmspec.zoo.files.image import read_vq
from mmspec.zoo.files.registry import folder_of
from mmspec.zoo.files.video import read_prompts, write_prompts
from mmspec.zoo.training import facts
from mmspec.zoo.training.video import build_tokens
from mmspec.zoo.training.video.build_tokens import build, recipe_of, train_video_codes, video_codes
from mmspec.zoo.world.tracking import agreement
from mmspec.zoo.world.video import sample_video_scene
from mmspec.zoo.world.video_prompts import LONGEST, video_prompt_tokenizer

IMAGES = folder_of("t2i")


@pytest.fixture(scope="module")
def small() -> build_tokens.VideoRecipe:
    recipe = recipe_of(2, 1, 1)
    return replace(recipe, batch=2, config=replace(recipe.config, dim=32, n_layer=1, n_head=2, frames=2, time_pairs=2))


def test_the_recipe_is_small_enough_to_ship() -> None:
    from mmspec.imagegen.llamagen.transformer import Transformer

    config = recipe_of().config
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in Transformer(config).parameters())
    encoder = 1.01e6  # bytes of the caption encoder, as in "t2i"
    assert 2 * count + encoder < 5e6 and config.frames * config.block_size == 512


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights folder with a tokenizer of frames, and an untrained caption encoder."""
    folder = tmp_path_factory.mktemp("weights")
    (folder / "t2i").symlink_to(folder_of("t2i"))
    tokenizer = video_prompt_tokenizer()
    write_prompts(new_encoder(tokenizer), tokenizer, folder / "video")
    return folder


@pytest.mark.usefixtures("brief_projection")
def test_a_build_can_be_loaded_by_name_and_draws_videos(
    small: build_tokens.VideoRecipe, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = weights / "video_tokens"
    card = build(out, tmp_path / "work", IMAGES, weights / "video", small, measured=1)
    assert json.loads((out / "card.json").read_text()) == card and card["command"] == "mmspec zoo build video/tokens"
    assert 0 <= card["evaluation"]["agreement"] < card["evaluation"]["agreement_rendered"] <= 1
    assert card["evaluation"]["codes_a_pass"] >= 1 and card["held_out"]["loss"] > 5
    assert not (out / "vq").exists() and not (out / "text_encoder").exists()
    monkeypatch.setattr(registry, "WEIGHTS", weights)
    assert "video/tokens" in mmspec.zoo.names()
    pipe = mmspec.zoo.load("video/tokens")
    out = pipe("a red circle moves to the right", decoding=SCD(64), seed=0)
    assert [frame.size for frame in out.videos[0]] == [(32, 32)] * 2 and out.tokens.shape == (1, 128)
    assert out.arrays().shape == (1, 2, 32, 32, 3) and out.stats.exact


@pytest.mark.usefixtures("brief_projection")
def test_a_stopped_training_goes_on_where_it_was(
    small: build_tokens.VideoRecipe, weights: Path, tmp_path: Path
) -> None:
    prompts = read_prompts(weights / "video")
    before = {name: value.clone() for name, value in prompts.encoder.state_dict().items()}
    reader = build_tokens.train_video_prompt_projection(prompts.encoder, tmp_path / "captions", 32, 2)
    assert all(torch.equal(value, before[name]) for name, value in reader.encoder.state_dict().items())
    encode, vq = CaptionEncoder(prompts.encoder, prompts.tokenizer, LONGEST), read_vq(IMAGES / "vq")
    gpt, notes = train_video_codes(small, vq, encode, tmp_path / "codes", projection=reader.projection)
    again, same = train_video_codes(small, vq, encode, tmp_path / "codes", projection=reader.projection)
    assert notes == same
    for name, value in gpt.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.fixture
def brief_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = facts.train_video_prompt_projection

    def brief(encoder: object, folder: Path, dim: int, frames: int, *, resume: bool = True) -> object:
        return whole(encoder, folder, dim, frames, steps=2, batch=4, resume=resume)

    monkeypatch.setattr(build_tokens, "train_video_prompt_projection", brief)


def test_frames_come_back_through_the_tokenizer_with_most_that_a_prompt_names() -> None:
    vq, scenes = read_vq(IMAGES / "vq"), [sample_video_scene(seed) for seed in range(12)]
    codes = video_codes(vq, scenes, 5).view(12 * 5, -1)
    assert codes.shape == (60, 64)
    frames = vq.decode_code(codes).add(1).mul(127.5).clamp(0, 255).round().byte()
    frames = frames.view(12, 5, 3, 32, 32).permute(0, 1, 3, 4, 2).numpy().repeat(2, 2).repeat(2, 3)
    named = [[(mover.kind, mover.color, mover.direction) for mover in scene.movers] for scene in scenes]
    found = [agreement(*pair) for pair in zip(frames, named, strict=True)]
    swapped = [agreement(*pair) for pair in zip(frames, named[1:] + named[:1], strict=True)]
    assert sum(found) > 0.7 * 12 > 0.5 * 12 > sum(swapped)


def test_a_second_run_begins_with_many_short_videos_and_is_guided_anew() -> None:
    recipe = replace(recipe_of(20, 10, 4), guided_share=0.5)
    assert [recipe.frames(step) for step in (9, 10, 13, 14, 19)] == [8, 2, 2, 8, 8]
    assert [len(recipe.scenes(step)) for step in (9, 10, 14)] == [8, 32, 8]
    assert [recipe.guided(step) for step in (0, 4, 5, 9, 10, 14, 15)] == pytest.approx([1, 0.2, 0, 0, 1, 0.2, 0])
    assert recipe.plan().lr_at(10) < recipe.plan().lr_at(11)
    with pytest.raises(ValueError, match="short videos"):
        replace(recipe, short=9)
