"""Rewards of frames by name: the zoo's, or a published model's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.run.model_kinds import zoo_part
from mmspec.video.rewards.by_name import PUBLISHED_CONFIGS, REWARD_FILES, published_reward

if TYPE_CHECKING:
    from mmspec.video.rewards.scores import Reward

ZOO_REWARDS = ("reward", "clip")  # a trained reward, and the cosine of the zoo's picture CLIP

BENCH_REWARD_FORMS = f"{', '.join(ZOO_REWARDS)}, or {REWARD_FILES}"


def check_reward(name: str) -> None:
    """Check the name of a reward, and that its file exists."""
    kind, _, file = name.partition(":")
    if name in ZOO_REWARDS or kind in PUBLISHED_CONFIGS and Path(file).is_file():
        return
    if kind in PUBLISHED_CONFIGS and file:
        raise ValueError(f"--reward: expected an existing file, got {file!r}; name the .safetensors file")
    raise ValueError(f"--reward: expected one of {BENCH_REWARD_FORMS}, got {name!r}, pick one of these")


def reward_of(name: str) -> Reward:
    check_reward(name)
    if name == "reward":
        return zoo_part("video/reward", "--reward")
    if name == "clip":
        from mmspec.video.rewards.clip import CosineReward

        return CosineReward(zoo_part("clip", "--reward"), name="clip")
    return published_reward(name)
