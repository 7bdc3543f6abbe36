"""Rewards of frames by name, for benches and sweeps: the zoo's, or a published model's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from einops import rearrange

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.base.provenance import files_digest
from mmspec.io.images import check_image
from mmspec.video.rewards.by_name import PUBLISHED_CONFIGS, reward_of_file

if TYPE_CHECKING:
    from mmspec.video.rewards.scores import Reward


REWARD_FORMS = "zoo, imagereward=FILE@VOCABULARY, hpsv2=FILE or pickscore=FILE"


class RewardScorer:
    """The mean of a reward over the frames of a picture or video; a picture is a single frame."""

    name = "reward"

    def __init__(self, reward: Reward, hash: str):
        self.reward, self.hash = reward, hash
        self.about = f"mean over frames of {getattr(reward, 'name', type(reward).__name__)}"

    def __call__(self, outputs: Sequence[Any], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        from mmspec.video.rewards.scores import scored

        pairs = zip(outputs, prompts, strict=True)
        return np.array([float(scored(self.reward, frames_of(pair), prompt.text).mean()) for pair, prompt in pairs])


def frames_of(output: Any) -> torch.Tensor:
    """Return a picture or a video uint8 [F, H, W, 3] as uint8 [F, 3, H, W]."""
    array = output if isinstance(output, np.ndarray) else np.array(check_image(output))[None]
    return rearrange(torch.from_numpy(array), "f h w c -> f c h w")


def reward_scorer_of(text: str) -> RewardScorer:
    """Return the reward scorer of a text. "zoo" is the zoo's reward of frames, "imagereward=FILE@VOCABULARY"
    ImageReward with the vocab.txt of uncased BERT, "hpsv2=FILE" and "pickscore=FILE" are published models. Files are
    safetensors."""
    name, _, rest = text.partition("=")
    if text == "zoo":
        from mmspec import zoo
        from mmspec.zoo.files.registry import folder_with_weights

        return RewardScorer(zoo.load("video/reward"), files_digest([folder_with_weights("video/reward")]))
    file, at, vocabulary = rest.partition("@")
    if not file or name not in PUBLISHED_CONFIGS or (name == "imagereward") != bool(at):
        raise ValueError(f"--reward: expected {REWARD_FORMS}, got {text!r}, write one of these")
    files = [Path(path) for path in (file, vocabulary) if path]
    return RewardScorer(reward_of_file(name, *files, whole=False), files_digest(files))
