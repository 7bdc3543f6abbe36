"""Reward models as scorers of pictures and films, by name; weights are the user's, but for the zoo's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mmspec.evaluate.engine.hashes import files_digest
from mmspec.evaluate.engine.prompt import Prompt

if TYPE_CHECKING:
    from mmspec.video.rewards.scores import Reward

FORMS = "zoo, imagereward=FILE@VOCABULARY, hpsv2=FILE or pickscore=FILE"


class RewardScorer:
    """The mean of a reward over the frames of what was made, a picture being one frame.   hash: of its weights."""

    name = "reward"

    def __init__(self, reward: Reward, hash: str):
        self.reward, self.hash = reward, hash
        self.about = f"mean over frames of {getattr(reward, 'name', type(reward).__name__)}"

    def __call__(self, made: Sequence[Any], prompts: Sequence[Prompt]) -> np.ndarray:
        from mmspec.video.rewards.scores import scored

        pairs = zip(made, prompts, strict=True)
        return np.array([float(scored(self.reward, frames_of(one), asked.text).mean()) for one, asked in pairs])


def frames_of(made: Any) -> torch.Tensor:
    """A picture or a film uint8 [F, H, W, 3] as uint8 [F, 3, H, W]."""
    array = made if isinstance(made, np.ndarray) else np.array(made.convert("RGB"))[None]
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def reward_of(text: str) -> RewardScorer:
    """zoo: the zoo's reward of frames, once it is built.   imagereward=FILE@VOCABULARY: ImageReward and the vocab.txt of
    uncased BERT.   hpsv2=FILE, pickscore=FILE. Files are safetensors.

    Raises ValueError for another form, and where there are none.
    """
    name, _, rest = text.partition("=")
    if text == "zoo":
        from mmspec import zoo
        from mmspec.zoo.files.registry import folder_with_weights

        return RewardScorer(zoo.load("video/reward"), files_digest([folder_with_weights("video/reward")]))
    file, at, vocabulary = rest.partition("@")
    if not file or name not in ("imagereward", "hpsv2", "pickscore") or (name == "imagereward") != bool(at):
        raise ValueError(f"--reward: expected {FORMS}, got {text!r}, write one of these")
    if name == "imagereward":
        from mmspec.video.rewards.imagereward import ImageRewardScorer
        from mmspec.video.rewards.imagereward_load import imagereward_from_state_dict

        made: Reward = ImageRewardScorer(imagereward_from_state_dict(Path(file)), vocabulary)
        return RewardScorer(made, files_digest([Path(file), Path(vocabulary)]))
    from mmspec.video.rewards import published

    load = {"hpsv2": published.hpsv2_from_state_dict, "pickscore": published.pickscore_from_state_dict}[name]
    return RewardScorer(load(Path(file)), files_digest([Path(file)]))
