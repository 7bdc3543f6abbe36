"""Short builds of the video autoencoder, models and reward: what comes out, and that stopped ones go on where they were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import mmspec
from mmspec.video import SDVG, CausalWan, Strided
from mmspec.video.rewards.scores import scored
from mmspec.zoo.architectures.frame_reward import FrameReward, RewardSize
from mmspec.zoo.files import registry
from mmspec.zoo.training import facts
from mmspec.zoo.training.video import build_draft, build_reward, build_target, build_vae, reward_frames
from mmspec.zoo.training.video.block_training import BlockRecipe, coupled_noise, train_blocks
from mmspec.zoo.training.video.build_draft import DraftRecipe, saliency, train_draft
from mmspec.zoo.training.video.build_reward import RewardRecipe, ranks_agree
from mmspec.zoo.training.video.build_vae import (
    FIRST_SEED,
    VaeSize,
    VideoVaeRecipe,
    decode_latents,
    new_model,
    train_video_vae,
)
from mmspec.zoo.training.video.clips import (
    CUT,
    SEEDS,
    Clip,
    ClipSet,
    channel_of,
    clip_pixels,
    clip_set,
    pixel_frames,
    spans,
    training_clip,
)
from mmspec.zoo.training.video.reward_frames import KINDS, altered_scene
from mmspec.zoo.world.scene import EVAL_START
from mmspec.zoo.world.video import render_frames, sample_video_scene

VAE = VideoVaeRecipe(
    VaeSize(base_dim=4, dim_mult=(1, 1, 2)),
    steps=4,
    again=2,
    batch=2,
    frames=5,
    long=9,
    short_steps=2,
    short_batch=2,
)
CLIPS = (("whole", 2), ("cuts", 2), ("starts", 2))
SMALL = {"config": build_target.video_config(1, 16, 1), "clips": CLIPS, "batch": 2, "starts": 2, "steps": 4, "again": 2}
TARGET = replace(build_target.target_recipe(), **SMALL)
DRAFT = replace(build_draft.draft_recipe(), config=SMALL["config"], batch=2, members=4, steps=4)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights folder with an autoencoder, and models of both sizes over it."""
    folder, work = tmp_path_factory.mktemp("weights"), tmp_path_factory.mktemp("work")
    whole = facts.train_video_prompt_encoder
    with pytest.MonkeyPatch.context() as patch:
        brief = lambda folder, dim, frames, resume: whole(folder, dim, frames, steps=1, batch=2, resume=resume)  # noqa: E731
        patch.setattr(build_target, "train_video_prompt_encoder", brief)
        build_vae.build(folder / "video_vae", work, VAE, measured=1)
        build_target.build(folder / "video", work, folder / "video_vae", TARGET, measured=1, blocks=2)
    build_draft.build(folder / "video_draft", work, folder / "video_vae", folder / "video", DRAFT, measured=2, blocks=2)
    return folder


@pytest.fixture
def named(weights: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "WEIGHTS", weights)
    return weights


def test_built_models_are_loaded_by_name(named: Path) -> None:
    built = ("video/vae", "video", "video/draft")
    cards = {name: json.loads((registry.folder_of(name) / "card.json").read_text()) for name in built}
    assert set(built) <= set(mmspec.zoo.names())
    assert cards["video/vae"]["evaluation"]["agreement_rendered"] == 1 and cards["video/vae"]["stride"] == [4, 8, 8]
    for name in ("video", "video/draft"):
        assert {"seen", "direction", "shape_rendered"} <= cards[name]["evaluation"].keys()
        assert cards[name]["command"] == f"mmspec zoo build {name}"
    assert cards["video"]["held_out"]["loss"] > 1 and {"first", "later"} == cards["video/draft"]["held_out"].keys()
    target, draft = mmspec.zoo.load("video"), mmspec.zoo.load("video/draft")
    assert target.model.channels == draft.model.channels == target.vae.layout.channels
    assert (target.model.passes, draft.model.passes) == (8, 2)
    states = [pipe.encoder(["a red star moves up"]) for pipe in (target, draft)]
    assert torch.equal(*states) and states[0].shape == (1, 48, 128)
    out = target("a red star moves up", decoding=SDVG(draft, router=Strided(2)), blocks=3, seed=0)
    assert out.videos[0].shape == (pixel_frames(3), 64, 64, 3) and not out.errors
    assert not (named / "video_draft" / "text_encoder").exists()


def test_latents_of_training_clips_have_mean_0_and_deviation_1(named: Path) -> None:
    vae = mmspec.zoo.load("video/vae")
    made = [build_vae.clip_of(VAE, np.random.default_rng(seed), FIRST_SEED + 2 * seed, VAE.long) for seed in range(2)]
    latents = vae.encode(clip_pixels(made, VAE.long))[0].transpose(0, 1).flatten(1)
    torch.testing.assert_close(latents.mean(1), torch.zeros(8), atol=2e-2, rtol=0)
    torch.testing.assert_close(latents.std(1), torch.ones(8), atol=2e-2, rtol=0)


@pytest.mark.whole
def test_a_reward_is_built_from_frames_of_all_kinds(named: Path, tmp_path: Path) -> None:
    recipe = RewardRecipe(RewardSize(8, 8, 8, 1, 16, 2, 1), steps=2, batch=2, members=len(KINDS))
    card = build_reward.build(
        named / "video_reward",
        tmp_path,
        mmspec.zoo.load("video"),
        mmspec.zoo.load("video/draft"),
        recipe,
        measured=len(KINDS),
    )
    assert {"frames", "blocks", *KINDS} <= card["evaluation"].keys()
    reward = mmspec.zoo.load("video/reward")
    frames = torch.from_numpy(render_frames(sample_video_scene(0), 3)).permute(0, 3, 1, 2)
    scores = scored(reward, frames, "a red star moves up")
    assert scores.shape == (3,) and 0 < scores.min() and scores.max() < 1
    torch.testing.assert_close(scored(reward, frames.float() / 127.5 - 1, "a red star moves up"), scores)
    assert not torch.equal(scored(reward, frames, "a blue ring moves down"), scores)


def test_words_that_are_padding_are_not_looked_for() -> None:
    torch.manual_seed(0)
    model, states, pixels = FrameReward().eval(), torch.randn(2, 5, 128), torch.rand(2, 3, 64, 64)
    padded = torch.cat((states, torch.zeros(2, 4, 128)), 1)
    torch.testing.assert_close(model(pixels, padded), model(pixels, states))


def test_training_pixels_are_those_of_the_published_call_within_its_limits() -> None:
    model = new_model(VAE).eval()
    latents = torch.randn(1, 8, 3, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(decode_latents(model, latents).clamp(-1, 1), model.decode(latents).sample)


def clips(kind: str) -> ClipSet:
    count, frames = 4, 3 if kind == "starts" else 12
    return ClipSet(kind, torch.randn(count, 8, frames, 8, 8, generator=torch.Generator().manual_seed(3)).half())


@pytest.mark.whole
def test_stopped_runs_go_on_as_if_nothing_had_been(tmp_path: Path, weights: Path) -> None:
    encode = mmspec.zoo.files.video.read_prompts(weights / "video")
    sets = {kind: clips(kind) for kind in SEEDS}

    def blocks(folder: Path) -> torch.nn.Module:
        return train_blocks(replace(TARGET, own_after=0.25), sets, encode, folder)[0]

    def vae(folder: Path) -> torch.nn.Module:
        model = new_model(VAE)
        train_video_vae(model, folder, VAE)
        return model

    def draft(folder: Path) -> torch.nn.Module:
        films = build_draft.GeneratedVideos(clips("whole").latents, build_draft.FIRST_SEED)
        return train_draft(replace(DRAFT, own_after=0.25), films, encode, folder)[0]

    trained = ((blocks, BlockRecipe, "draws"), (vae, VideoVaeRecipe, "clips"), (draft, DraftRecipe, "draws"))
    for train, kind, drawn in trained:
        plan, real, calls = kind.plan, getattr(kind, drawn), []

        def stopped(recipe, step, real=real, calls=calls):
            if step == 2 and not calls:
                calls.append(step)
                raise KeyboardInterrupt
            return real(recipe, step)

        name = kind.__name__
        whole, parted = train(tmp_path / f"{name}_whole"), tmp_path / f"{name}_parted"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "plan", lambda recipe, plan=plan: replace(plan(recipe), save_every_s=0.0))
            patch.setattr(kind, drawn, stopped)
            with pytest.raises(KeyboardInterrupt):
                train(parted)
        again = train(parted)
        for name, value in whole.state_dict().items():
            assert torch.equal(again.state_dict()[name], value), name


def test_blocks_cover_their_pixel_frames_without_a_gap() -> None:
    assert [pixel_frames(blocks) for blocks in (1, 2, 7)] == [9, 21, 81]
    assert spans(0) == [(0, 1), (1, 5), (5, 9)] and spans(3) == [(0, 4), (4, 8), (8, 12)]


def test_a_cut_shows_the_second_scene_from_its_own_start() -> None:
    one = training_clip("cuts", 3, 8)
    (_, scene), (block, other) = one.scenes
    frames = one.clip().frames(45)
    assert block == CUT and scene.seed + 1 == other.seed
    np.testing.assert_array_equal(frames, np.concatenate((render_frames(scene, 21), render_frames(other, 24))))
    assert len(Clip(scene, first=5).frames(3)) == 3


def test_noise_places_objects_where_scenes_begin_and_is_white_elsewhere() -> None:
    members = [training_clip("cuts", index, 8) for index in range(2)]
    drawn = [
        coupled_noise(members, torch.Size((2, 8, 12, 8, 8)), torch.Generator().manual_seed(seed)) for seed in (0, 1)
    ]
    same = (drawn[0] == drawn[1]).flatten(3).all(3)  # [B, C, F]
    for row, member in enumerate(members):
        wanted = torch.zeros(8, 12, dtype=torch.bool)
        for block, scene in member.scenes:
            for mover in scene.movers:
                wanted[channel_of(mover, 8), 3 * block : 3 * block + 3] = True
        assert torch.equal(same[row], wanted)


def test_levels_are_those_of_the_few_steps_and_between() -> None:
    levels = replace(DRAFT, few=0.8).levels((400, 4), torch.Generator().manual_seed(0))
    few = torch.isclose(levels[..., None], torch.tensor([1.0, 0.75])).any(-1)
    assert float(few.float().mean()) == pytest.approx(0.8, abs=0.03) and 0 < levels.min() and levels.max() <= 1


def test_drafter_training_videos_match_the_target_for_the_same_noise_and_prompts(named: Path, tmp_path: Path) -> None:
    target, first = mmspec.zoo.load("video"), build_draft.FIRST_SEED
    films = build_draft.generated_videos(target, tmp_path, 5)
    member = 3  # one that is asked for something else from CUT on
    told = [build_draft.block_prompt(first, member, block, member) for block in (0, CUT)]
    assert told[0] != told[1] and build_draft.block_prompt(first, 1, 0, 1) == build_draft.block_prompt(first, 1, CUT, 1)
    out = target(told[0], blocks=4, seed=[first + 2 * member], switch={CUT: told[1]}, pixels=False)
    torch.testing.assert_close(films.latents[member].float(), out.latents[0], atol=2e-3, rtol=2e-3)
    noise = films.noise([member])
    assert torch.equal(noise, films.noise([0, member])[1:]) and abs(float(noise.std()) - 1) < 0.05
    assert [where[:2] for where in films.prompts([member], member)] == [(0, CUT), (CUT, 4)]
    assert [where[2] for where in films.prompts([member], member)] == [[told[0]], [told[1]]]


def test_saliency_is_highest_at_the_object() -> None:
    latents = torch.zeros(1, 8, 3, 8, 8)
    latents[:, 2, 1, 4, 5], latents[:, 2, 1, 4, 6] = 2.0, 1.0
    found = saliency(latents)
    assert found[0, 1, 4, 5] == 1 and found[0, 1, 4, 6] == 0.25 and found.sum() == 1.25


def test_latents_are_made_anew_for_another_autoencoder(tmp_path: Path, weights: Path) -> None:
    vae = mmspec.zoo.files.video.read_video_vae(weights / "video_vae")
    first = clip_set(vae, tmp_path, "starts", 2)
    assert first.latents.shape == (2, 8, 3, 8, 8) and torch.equal(
        clip_set(vae, tmp_path, "starts", 2).latents, first.latents
    )
    with torch.no_grad():
        vae.model.quant_conv.bias.add_(1.0)
    assert not torch.equal(clip_set(vae, tmp_path, "starts", 2).latents, first.latents)


def test_an_altered_scene_names_one_absent_object() -> None:
    for seed in range(40):
        scene = sample_video_scene(seed)
        asked = altered_scene(scene, np.random.default_rng(seed))
        looks = [{mover.look for mover in one.movers} for one in (scene, asked)]
        assert len(looks[0] - looks[1]) == 1 and len({mover.color for mover in asked.movers}) == len(asked.movers)


def test_ranks_agree_with_their_definition() -> None:
    one = np.array([1.0, 2.0, 2.0, 5.0])
    assert ranks_agree(one, one**3) == pytest.approx(1) and ranks_agree(one, -one) == pytest.approx(-1)
    assert ranks_agree(one, np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(0.9486833)
    assert ranks_agree(one, np.zeros(4)) == 0


def test_recipes_fit_the_size_limits_and_hold_out_the_evaluation_data() -> None:
    sizes = {}
    target, draft = build_target.target_recipe(), build_draft.draft_recipe()
    for recipe in (target, draft):
        with torch.device("meta"):
            sizes[recipe.name] = sum(parameter.numel() for parameter in CausalWan(recipe.config).parameters())
    ends = [SEEDS[kind] + 2 * count for kind, count in target.clips]
    frames = [reward_frames.FIRST_SEED, reward_frames.FIRST_SEED + RewardRecipe().members]
    films = [build_draft.FIRST_SEED, build_draft.FIRST_SEED + 2 * draft.members]
    assert sorted([*ends, *films, *frames]) == [*ends, *films, *frames] and frames[-1] + (1 << 24) < EVAL_START
    sizes["vae"] = sum(parameter.numel() for parameter in new_model(VideoVaeRecipe()).parameters())
    sizes["reward"] = sum(parameter.numel() for parameter in FrameReward().parameters())
    encoder = 1.01e6  # bytes of the caption encoder
    assert sizes["video"] > 3.5e6 and sizes["video"] > 4 * sizes["video/draft"]
    assert 2 * sum(sizes.values()) + encoder < 12.2e6
    shipped = VideoVaeRecipe()
    assert FIRST_SEED + 2 * shipped.steps * shipped.most < min(SEEDS.values())
    for wrong in (
        lambda: VideoVaeRecipe(frames=12),
        lambda: replace(TARGET, starts=0),
        lambda: replace(TARGET, clips=(("whole", 1),)),
        lambda: replace(DRAFT, members=1),
        lambda: RewardRecipe(members=1),
        lambda: RewardSize(heads=3),
    ):
        with pytest.raises(ValueError, match="expected"):
            wrong()
