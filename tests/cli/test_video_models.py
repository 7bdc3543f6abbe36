"""Models that `mmspec video` draws with: folders, drafters, rewards, routers, and models of codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmspec.cli import app
from tests.cli.video_command import drawn, refused, runner
from tests.evaluate.tiny_video import BLOCKS, saved, tiny_video_zoo

pytestmark = pytest.mark.usefixtures("tiny_video")


def test_models_in_folders_with_their_drafters(tmp_path: Path) -> None:
    big, small = saved(tmp_path / "big"), saved(tmp_path / "small", 1)
    common = ("--model", str(big), "--decoding", "sdvg", "--router", "strided:budget=2")
    assert drawn(*common, "--draft", str(small))["target_blocks"] == 2
    assert "--draft: expected the folder of a smaller model" in refused(*common)
    assert "--draft: expected --decoding draft or sdvg" in refused("--model", str(big), "--draft", str(small))
    for other in ("video", str(tmp_path / "none")):
        said = refused(*common, "--draft", other)
        assert f"--draft: expected a folder with a saved pipeline of blocks, got '{other}'" in said
    (big / "model_index.json").write_text('{"_class_name": "BlockVideoPipeline", "size": [8, 7]}')
    assert refused("--model", str(big)).startswith("Error: --model: expected a folder with a saved pipeline, got '")


def test_a_diffusers_folder_is_refused_with_the_way_to_load_its_pipeline(tmp_path: Path) -> None:
    from mmspec.run.model_kinds import DIFFUSERS_PIPELINES
    from mmspec.video.adapters.diffusers_pipelines import _FAMILIES

    assert set(DIFFUSERS_PIPELINES) == set(_FAMILIES)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model_index.json").write_text('{"_class_name": "HeliosPipeline"}')
    said = refused("--model", str(tmp_path / "theirs"))
    assert "got diffusers' HeliosPipeline in" in said and said.endswith("mmspec.video.from_diffusers")


def test_a_drafter_of_another_autoencoder_or_of_other_blocks_is_refused(tmp_path: Path) -> None:
    from mmspec.video import BlockPlan, BlockVideoPipeline, StreamingWanVAE
    from tests.video.decoding.tiny import SIZE, vae
    from tests.video.test_pipeline import encoder
    from tests.video.tiny import video
    from tests.video.vae.tiny import autoencoder

    foreign = autoencoder("two frames a latent")
    foreign.register_to_config(latents_mean=[0.0, 0.0, 0.0])
    for name, plan, own in (("vae", BlockPlan(2), StreamingWanVAE(foreign)), ("blocks", BlockPlan(3), vae())):
        BlockVideoPipeline(video(plan=plan), own, encoder(), size=SIZE, blocks=2).save_pretrained(tmp_path / name)
    big = str(saved(tmp_path / "big"))
    routed = ("--model", big, "--decoding", "sdvg", "--router", "strided:budget=2", "--draft")
    wrong = "expected latents of the same autoencoder, got mean (0.0, 0.0, 0.0) instead of (0.3, -0.2, 0.1)"
    assert f"drafter: {wrong}" in refused(*routed, str(tmp_path / "vae"))
    assert f"--draft: {wrong}" in refused("--model", big, "--decoding", "draft", "--draft", str(tmp_path / "vae"))
    blocks = "expected blocks as the target's, 2 latent frames per block, got 3 latent frames per block"
    assert f"drafter: {blocks}" in refused(*routed, str(tmp_path / "blocks"))


def test_published_rewards_score_from_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    from mmspec.run.rewards import reward_of
    from tests.video.rewards.reference import CONFIG, random_state
    from tests.video.rewards.test_imagereward import WORDS, scorer

    folder, frames = tmp_path / "reward", torch.rand(2, 3, 48, 96) * 2 - 1
    folder.mkdir()
    save_file(random_state(), folder / "imagereward.safetensors")
    named = f"imagereward:{folder / 'imagereward.safetensors'}"
    (folder / "med_config.json").write_text(json.dumps(CONFIG))
    assert "vocab.txt" in refused("--decoding", "sdvg", "--threshold", "0", "--reward", named)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    found, crop = reward_of(named)(frames, "a red ball"), scorer(tmp_path / "words.txt")(frames, "a red ball")
    assert found.shape == crop.shape and not torch.equal(found, crop)  # the sides of a wide frame count, too
    assert torch.allclose(reward_of(named)(frames[..., 24:72], "a red ball"), crop, atol=1e-4)
    record = drawn("--decoding", "sdvg", "--threshold", "-inf", "--reward", named)
    assert record["drafted"] == BLOCKS - 1 and record["reward_s"] > 0


def test_a_learned_router_is_read_from_its_folder(tmp_path: Path) -> None:
    from mmspec.video.routing.learned import Advantage, AdvantageConfig

    Advantage(AdvantageConfig(hidden=4)).save_pretrained(tmp_path / "router")
    words = ("--decoding", "sdvg", "--router", f"learned:model={tmp_path / 'router'},gain=inf")
    assert drawn(*words)["target_blocks"] == 1


@pytest.mark.parametrize(
    "words", ["--init frame", "--decoding sjd --window 4 --init repeat_frame", "--decoding ar --top-k 3 --guidance 1"]
)
def test_videos_of_codes_are_drawn_exactly(words: str) -> None:
    record = drawn("--model", "video/tokens", *words.split())
    assert record["exact"] and record["frames"] == 3 and record["plain_passes"] == 12
    plain = "ar" in words.split()
    assert (record["target_passes"] == 12) == plain and record["guidance"] == (1.0 if plain else 2.0)


def test_a_folder_of_video_codes_is_generated_and_an_image_folder_refused(tmp_path: Path) -> None:
    from tests.evaluate.tiny_images import tiny_image_zoo

    tiny_video_zoo()["video/tokens"].save_pretrained(tmp_path / "codes")
    assert drawn("--model", str(tmp_path / "codes"), "--temperature", "0.5")["temperature"] == 0.5
    tiny_image_zoo()["t2i"].save_pretrained(tmp_path / "pictures")
    said = refused("--model", str(tmp_path / "pictures"))
    assert "which draws pictures, call `mmspec image`" in said


def test_models_without_weights_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.names", lambda: ["t2i"])
    said = refused("--model", "video")
    assert "--model: expected weights of the zoo's video, got none yet, run `mmspec zoo build video` or name" in said
    result = runner.invoke(app, ["bench", "video"])
    assert result.exit_code != 0 and "--model: expected weights of the zoo's video, got none yet" in result.stderr
