"""Rewards by name: files of published models, such as "imagereward:FILE", and rewards of the zoo, "zoo:NAME"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.io.pretrained import ZOO, from_zoo

if TYPE_CHECKING:
    from mmspec.video.rewards.scores import Reward

# published model -> the config beside its weights
PUBLISHED_CONFIGS = {"imagereward": "med_config.json", "hpsv2": None, "pickscore": "config.json"}
REWARD_FILES = ", ".join(f"{kind}:FILE" for kind in PUBLISHED_CONFIGS)


def is_published(name: str) -> bool:
    """The file need not exist."""
    kind, colon, file = name.partition(":")
    return kind in PUBLISHED_CONFIGS and bool(colon and file)


def published_reward(name: str) -> Reward:
    """Load the reward in a published model's file, such as "pickscore:FILE", with the config beside it if present."""
    kind, _, file = name.partition(":")
    if not Path(file).is_file():
        raise ValueError(f"reward: expected a file, got {file!r}, which does not exist; name the .safetensors file")
    return reward_of_file(kind, Path(file))


def reward_of_file(kind: str, file: Path, vocabulary: Path | None = None, *, whole: bool = True) -> Reward:
    """Load a published reward; ImageReward's `vocab.txt` is beside the file by default. `whole` covers a wide frame
    with several squares instead of the published centre crop; HPSv2 always reads the whole frame in one square."""
    from mmspec.io.readers import read_json
    from mmspec.video.rewards.clip import hpsv2_from_state_dict, pickscore_from_state_dict
    from mmspec.video.rewards.imagereward import ImageRewardScorer
    from mmspec.video.rewards.imagereward_load import imagereward_from_state_dict
    from mmspec.video.rewards.scores import Views

    if kind == "hpsv2":
        return hpsv2_from_state_dict(file)
    beside = file.parent / PUBLISHED_CONFIGS[kind]
    config = read_json(beside) if beside.is_file() else None
    if kind == "imagereward":
        model = imagereward_from_state_dict(file, config)
        views = Views(model.config.vision.img_size, crops="cover") if whole else None
        return ImageRewardScorer(model, vocabulary or file.parent / "vocab.txt", views)
    reward = pickscore_from_state_dict(file, config)
    return replace(reward, views=Views(reward.encoder.size, crops="cover")) if whole else reward


def load_reward(source: str, pipe: Any) -> Reward:
    """Return the reward that a text names: "zoo:NAME" of a reward or of the zoo's "clip", a published model and its
    file such as "imagereward:FILE", or a drafter of the zoo with its own reward. `pipe` is the pipeline whose frames it
    scores."""
    if is_published(source):
        return published_reward(source)
    reward = from_zoo(source.removesuffix("/draft") + "/reward" if source.endswith("/draft") else source)
    if reward is not None and source == f"{ZOO}clip":
        from mmspec.video.rewards.clip import CosineReward

        return CosineReward(reward, name="clip")
    if not callable(reward):
        raise ValueError(
            f"reward: expected zoo:NAME or {REWARD_FILES} as the setting 'reward', got {source!r}; name one"
        )
    return reward
