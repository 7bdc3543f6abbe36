"""Training of the zoo's reward on frames with measured truth: how well each frame shows the objects of its prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from mmspec.video.pipeline import BlockVideoPipeline
from mmspec.video.prompt_encoder import Encode
from mmspec.zoo.architectures.frame_reward import FrameReward, PromptReward, RewardSize
from mmspec.zoo.files.sized import load_sized, save_sized
from mmspec.zoo.training.loop import ZooRecipe, autocast
from mmspec.zoo.training.training_sets import batch_members
from mmspec.zoo.training.video.clips import PROMPT_FRAMES
from mmspec.zoo.training.video.reward_frames import (
    FIRST_SEED,
    KINDS,
    MEMBER_FRAMES,
    altered_scene,
    kind_of,
    reward_frames,
)
from mmspec.zoo.world.tracking import likeness
from mmspec.zoo.world.video import HELD_OUT, VideoScene, sample_video_scene
from mmspec.zoo.world.video_prompts import video_prompt

MEASURED = HELD_OUT + (5 << 20)


@dataclass(frozen=True, slots=True)
class RewardRecipe(ZooRecipe):
    name, data = "video/reward", "decoded blocks of moving scenes: true, spoiled, and drawn by video and video/draft"
    size: RewardSize = field(default_factory=RewardSize)
    steps: int = 3000
    lr: float = 2e-3
    batch: int = 12
    members: int = 2304  # of the fixed set, MEMBER_FRAMES frames each
    wrong: float = 0.35  # share of prompts that do not fit their frames
    seed: int = 0

    def __post_init__(self) -> None:
        right = min(self.steps, self.batch) >= 1 and self.members >= self.batch
        self.expect(right, "positive counts and a batch of members or more")

    def seeds(self) -> dict[str, Any]:
        return {"scene_seeds": [FIRST_SEED, FIRST_SEED + self.members]}

    def prompted_scene(self, scene: VideoScene, step: int) -> VideoScene:
        """Return the scene that the prompt of a step describes where `scene` is shown."""
        rng = np.random.default_rng((scene.seed, step))
        return altered_scene(scene, rng) if rng.random() < self.wrong else scene


def reward_loss(
    model: FrameReward, frames: Tensor, prompted: list[VideoScene], encode: Encode, step: int, device: str = "cpu"
) -> tuple[Tensor, dict[str, float]]:
    """Return the cross-entropy of frames uint8 [B, F, 64, 64, 3] with their likeness to their prompts, each in 0..1,
    and the mean gap."""
    truth = torch.from_numpy(
        np.stack([likeness(shown.numpy(), scene.movers) for shown, scene in zip(frames, prompted, strict=True)])
    )
    states = encode([video_prompt(scene, step, PROMPT_FRAMES) for scene in prompted])
    pixels = rearrange(frames, "b f h w c -> (b f) c h w").float() / 127.5 - 1
    with autocast(device):
        logits = model(pixels.contiguous().to(device), states.repeat_interleave(frames.shape[1], 0).to(device)).float()
    wanted = truth.flatten().float().to(device)
    gap = (logits.detach().sigmoid() - wanted).abs().mean()
    return F.binary_cross_entropy_with_logits(logits, wanted), {"gap": float(gap)}


def train_reward(
    recipe: RewardRecipe, frames: Tensor, encode: Encode, folder: Path, resume: bool = True, device: str = "cpu"
) -> tuple[FrameReward, dict[str, float]]:
    """Train a reward on frames of the scenes from FIRST_SEED on."""

    def loss(model: FrameReward, step: int) -> tuple[Tensor, dict[str, float]]:
        members = batch_members(len(frames), recipe.batch, step)
        prompted = [recipe.prompted_scene(sample_video_scene(FIRST_SEED + index), step) for index in members]
        return reward_loss(model, frames[members], prompted, encode, step, device)

    return recipe.trained(lambda: FrameReward(recipe.size), loss, folder, resume, device)


def evaluate_reward(reward: PromptReward, frames: Tensor, recipe: RewardRecipe, first: int) -> dict[str, float]:
    """Return rank correlations of scores with the measured likeness of frames uint8 [N, F, 64, 64, 3], of the scenes
    from `first` on: over frames, and over the lowest frames of members, which routers use: of all, with the right
    prompt, and by kind. The mean likeness by kind is included."""
    scores, truths, right = [], [], []
    for index, shown in enumerate(frames):
        scene = sample_video_scene(first + index)
        prompted = recipe.prompted_scene(scene, index)
        right.append(prompted is scene)
        scores.append(
            reward(rearrange(shown, "f h w c -> f c h w"), video_prompt(prompted, index, PROMPT_FRAMES)).numpy()
        )
        truths.append(likeness(shown.numpy(), prompted.movers))
    score, truth, own = np.stack(scores), np.stack(truths), np.array(right)
    figures = {
        "frames": ranks_agree(score.ravel(), truth.ravel()),
        "blocks": ranks_agree(score.min(1), truth.min(1)),
        "blocks_own_prompt": ranks_agree(score[own].min(1), truth[own].min(1)),
    }
    for kind in KINDS:
        rows = np.array([kind_of(index) == kind for index in range(len(frames))])
        figures[kind] = ranks_agree(score[rows].min(1), truth[rows].min(1))
        figures[f"{kind}_likeness"] = float(truth[rows & own].mean()) if (rows & own).any() else 0.0
    return figures


def ranks_agree(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's rank correlation; 0 where an array is constant. Equal values share their mean rank."""
    ranks = [_ranks(values) for values in (first, second)]
    return 0.0 if min(np.ptp(rank) if len(rank) else 0 for rank in ranks) == 0 else float(np.corrcoef(ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return (ends - (counts - 1) / 2)[place]


def build(
    out: Path,
    work: Path,
    target: BlockVideoPipeline,
    draft: BlockVideoPipeline,
    recipe: RewardRecipe = RewardRecipe(),
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 384,
) -> dict[str, Any]:
    """Train a reward in `work/video_reward` on frames in `work/video_reward_frames`, some of them generated by both
    models, and write fp16 weights with a card."""
    frames = reward_frames(target, draft, work, recipe.members)
    model, figures = train_reward(recipe, frames, target.encoder, work / recipe.folder, resume, device)
    save_sized(model.cpu(), model.size, out)
    stored = PromptReward(load_sized(RewardSize, FrameReward, out), target.encoder)
    unseen = reward_frames(target, draft, work, measured, MEASURED, "video_reward_held_out")
    measurements = {"evaluation": evaluate_reward(stored, unseen, recipe, MEASURED)}
    return recipe.card(out, stored.model, figures, measurements, batch=[recipe.batch, MEMBER_FRAMES])
