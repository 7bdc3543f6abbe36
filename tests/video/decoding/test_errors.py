"""Rows that cannot go on, requests that are stopped, and settings that do not fit."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

from mmspec.video import SDVG, BlockPlan, BlockVideoPipeline, Random, Strided, Threshold, VideoStopped
from mmspec.video.wan.video import WanState
from tests.video.decoding.tiny import SIZE, bright, drafter, encode, pipeline, sdvg, vae
from tests.video.tiny import video, wan
from tests.video.vae.tiny import autoencoder

PROMPTS = ["a", "bb", "ccc"]


class Spoiled:
    """A reward that is NaN for one prompt, from its second block on."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, frames, prompt):  # noqa: ANN001, ANN204
        self.seen += prompt == "bb"
        scores = bright(frames, prompt)
        return scores.index_fill(0, torch.tensor([2]), torch.nan) if prompt == "bb" and self.seen > 1 else scores


def check_the_row_stopped(out, plain, blocks: int, why: str) -> None:  # noqa: ANN001
    assert list(out.errors) == [1] and out.errors[1].startswith("row 1: ") and why in out.errors[1]
    assert f"after {blocks} of 5 blocks; the row stopped there" in out.errors[1] and "\n" not in out.errors[1]
    assert out.stats.emitted == [5, blocks, 5]
    for row in (0, 2):
        assert torch.equal(out.latents[row], plain.latents[row]) and np.array_equal(out.videos[row], plain.videos[row])
    frames = out.latents[1].shape[1]
    assert frames == 2 * blocks and torch.equal(out.latents[1], plain.latents[1][:, :frames])
    assert np.array_equal(out.videos[1], plain.videos[1][: len(out.videos[1])])


def test_a_score_that_is_nan_stops_its_row_and_keeps_its_blocks() -> None:
    pipe = pipeline()
    plain = pipe(PROMPTS, seed=0, decoding=sdvg(bright, -1.0))
    out = pipe(PROMPTS, seed=0, decoding=sdvg(Spoiled(), -1.0))
    check_the_row_stopped(out, plain, 2, "Spoiled: expected finite scores, got nan for frame 2 of 4")


@pytest.mark.parametrize("whose", ("drafter", "target"))
def test_latents_that_are_not_finite_stop_their_row(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, threshold = pipeline(), -1.0 if whose == "drafter" else 2.0
    plain, generate = pipe(PROMPTS, seed=0, decoding=sdvg(bright, threshold)), WanState._generate

    def broken(self, block, cache):  # noqa: ANN001, ANN202
        latents = generate(self, block, cache)
        mine = self.model.transformer is (wan(1) if whose == "drafter" else wan())
        if mine and block == 3 and torch.equal(self._text(0), encode(["bb"])):
            latents[0, 0, 0, 0, 0] = torch.inf
        return latents

    monkeypatch.setattr(WanState, "_generate", broken)
    out = pipe(PROMPTS, seed=0, decoding=sdvg(bright, threshold))
    check_the_row_stopped(out, plain, 3, "expected finite latents, got NaN or Inf")


def test_all_rows_may_stop_also_before_their_first_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WanState, "_generate", lambda *_: torch.full((1, 3, 2, 4, 4), torch.nan))
    out = pipeline()(PROMPTS, seed=0)
    assert out.videos == [None] * 3 and out.latents == [None] * 3 and sorted(out.errors) == [0, 1, 2]


def test_a_reward_of_another_shape_ends_the_request() -> None:
    with pytest.raises(ValueError, match="expected one score for each of 4 frames, got"):
        pipeline()(PROMPTS, seed=0, decoding=sdvg(lambda frames, prompt: torch.ones(1)))


@pytest.mark.parametrize("decoding", (None, sdvg(bright, 0.5)))
def test_an_interrupt_between_blocks_keeps_the_finished_blocks(decoding: SDVG | None) -> None:
    pipe = pipeline()

    def stop(row: int, block: int, frames: np.ndarray) -> None:
        if (row, block) == (0, 1):  # in the midst of a round
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(VideoStopped, match="2 of 5 blocks of the video are finished and kept") as stopped:
        pipe(PROMPTS, seed=0, decoding=decoding, listener=stop)
    assert signal.getsignal(signal.SIGINT) is before and stopped.value.signal == signal.SIGINT
    whole, part = pipe(PROMPTS, seed=0, decoding=decoding), stopped.value.output
    assert part.stats.emitted == [2, 2, 2] and part.stats.other_s > 0
    for row in range(3):
        assert np.array_equal(part.videos[row], whole.videos[row][: len(part.videos[row])])
        assert torch.equal(part.latents[row], whole.latents[row][:, :4])


def test_an_interrupt_behind_the_last_block_is_no_interrupt() -> None:
    def stop(row: int, block: int, frames: np.ndarray) -> None:
        if block == 4:
            os.kill(os.getpid(), signal.SIGINT)

    assert pipeline()("a", seed=0, listener=stop).stats.emitted == [5]


def test_drafters_of_other_latents_or_blocks_are_refused() -> None:
    pipe = pipeline()
    other = wan(2, in_channels=4, out_channels=4)
    for model, told in (
        (video(model=other), "expected latents of 3 channels as the target's, got 4"),
        (
            drafter(plan=BlockPlan(3)),
            "expected blocks as the target's, 2 latent frames per block, got 3 latent frames per block",
        ),
        (drafter(plan=BlockPlan(2, first=1)), "expected blocks as the target's"),
        (wan(1), "expected a block video model or a pipeline of one"),
        (None, "expected BlockVideoModel"),
    ):
        with pytest.raises(ValueError, match=f"drafter: {told}"):
            pipe("a", decoding=SDVG(model, bright, 0.0))
    vae_of = autoencoder("two frames a latent")
    vae_of.register_to_config(latents_mean=[0.0, 0.0, 0.0])
    foreign = BlockVideoPipeline(drafter(), type(vae())(vae_of), encode, size=SIZE)
    with pytest.raises(ValueError, match="drafter: expected latents of the same autoencoder, got mean"):
        pipe("a", decoding=SDVG(foreign, bright, 0.0))
    narrow = video(model=wan(1, text_dim=8))
    with pytest.raises(ValueError, match="text: expected .* 8"):
        pipe("a", decoding=SDVG(narrow, bright, 0.0))


def test_a_pipeline_drafts_as_its_model_does_and_reads_with_its_own_encoder() -> None:
    pipe = pipeline()
    wanted = pipe("a", seed=0, decoding=sdvg(bright, -1.0))
    shared = BlockVideoPipeline(drafter(), vae(), encode, size=SIZE)
    assert torch.equal(pipe("a", seed=0, decoding=SDVG(shared, bright, -1.0)).latents[0], wanted.latents[0])
    own = BlockVideoPipeline(drafter(), vae(), lambda texts: encode(["other"]), size=SIZE)
    assert not torch.equal(pipe("a", seed=0, decoding=SDVG(own, bright, -1.0)).latents[0], wanted.latents[0])


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({}, "threshold, router: expected one of them"),
        ({"threshold": 0.0, "router": Threshold(0)}, "threshold, router: expected one of them"),
        ({"threshold": float("nan")}, "threshold: expected a number"),
        ({"router": "strided"}, "router: expected strided:budget=..., got 'strided'"),
        ({"router": 3}, "router: expected a Router"),
        ({"threshold": 0.0, "reward": None}, "reward: expected a function of frames and prompt"),
        ({"threshold": 0.0, "reduction": "max"}, "reduction: expected 'min' or 'mean'"),
        ({"threshold": 0.0, "sync": "late"}, "sync: expected 'lazy', 'eager' or a Rebuilt"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(how: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SDVG(drafter(), **{"reward": bright, **how})


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"prompts": []}, "prompts: expected texts"),
        ({"prompts": ["a", 3]}, "prompts: expected texts"),
        ({"prompts": torch.zeros(2, 3)}, r"prompts: expected texts .*, got \(2, 3\)"),
        ({"blocks": 0}, "blocks: expected at least 1"),
        ({"blocks": 2.5}, "blocks: expected a whole number"),
        ({"size": (9, 8)}, "size: expected height and width, multiples of 2"),
        ({"size": (2, 2)}, "size: expected multiples of 2 and 2"),
        ({"seed": [1]}, "seed: expected one int or 3"),
        ({"switch": {5: "x"}}, "switch: expected blocks 0 to 4, got 5"),
        ({"switch": {2: ["x", "y"]}}, "switch: expected one text or 3"),
        ({"reward_prompt": ["x"]}, "reward_prompt: expected one text or 3"),
        ({"decoding": "sdvg"}, "decoding 'sdvg': threshold, router: expected one of them"),
        ({"decoding": 3}, "decoding: expected None, 'auto', a decoding of blocks"),
        ({"decoding": sdvg(router=Random([2, 2]))}, "budget: expected one number or 3"),
    ],
)
def test_requests_that_cannot_be_are_refused(how: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        pipeline()(**{"prompts": PROMPTS, "seed": 0, **how})


def test_a_pipeline_whose_parts_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="vae: expected latents of 4 channels as the model's, got 3"):
        BlockVideoPipeline(video(model=wan(2, in_channels=4, out_channels=4)), vae(), encode, size=SIZE)
    with pytest.raises(ValueError, match="size: expected height and width"):
        BlockVideoPipeline(video(), vae(), encode, size=(8, 7))
    with pytest.raises(ValueError, match="prompts: expected float .B, L, d. for a pipeline without a text encoder"):
        BlockVideoPipeline(video(), vae(), size=SIZE)("a")
    with pytest.raises(ValueError, match="budget: expected 1 or more"):
        Strided(0)
