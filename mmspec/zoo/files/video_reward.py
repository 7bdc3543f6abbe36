"""The zoo's reward of frames in its folder; its prompts are read by the caption encoder of another."""

from __future__ import annotations

from pathlib import Path

from ..architectures.frame_reward import FrameReward, PromptReward, RewardSize
from .scorers import load_scorer, save_scorer
from .video import read_prompts


def write_reward(model: FrameReward, folder: Path) -> None:
    """Write fp16 safetensors and config.json."""
    save_scorer(model, model.size, folder)


def read_reward(folder: Path, whole: Path) -> PromptReward:
    """The reward stored in `folder` with the caption encoder in `whole`; fp32 in eval mode.

    Raises ValueError for files that are damaged or do not fit.
    """
    return PromptReward(load_scorer(RewardSize, FrameReward, folder), read_prompts(whole))
