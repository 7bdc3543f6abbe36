"""What scores frames, as options name it: of the zoo, or a published model's file. Imports no models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.evaluate.video.kinds import zoo_part

if TYPE_CHECKING:
    from mmspec.video.rewards.scores import Reward

ZOO = ("reward", "clip")  # trained for it, or the cosine of the zoo's picture CLIP
PUBLISHED = {
    "imagereward": "med_config.json",
    "hpsv2": None,
    "pickscore": "config.json",
}  # and the config beside the weights
SHOWN = f"{', '.join(ZOO)}, or {', '.join(f'{kind}:FILE' for kind in PUBLISHED)}"


def check_reward(name: str) -> None:
    """Raises ValueError for what names no reward, and for a file that is not there."""
    kind, _, file = name.partition(":")
    if name in ZOO or kind in PUBLISHED and Path(file).is_file():
        return
    if kind in PUBLISHED and file:
        raise ValueError(f"--reward: expected a file, got {file!r}, which is none, name the .safetensors file")
    raise ValueError(f"--reward: expected one of {SHOWN}, got {name!r}, pick one of these")


def reward_of(name: str) -> Reward:
    """The reward.   Raises ValueError where the zoo has no weights of it, and as the loaders of the published ones do."""
    check_reward(name)
    if name == "reward":
        return zoo_part("video/reward", "--reward")
    if name == "clip":
        from mmspec.video.rewards.cosine import CosineReward

        return CosineReward(zoo_part("clip", "--reward"), name="clip")
    kind, _, file = name.partition(":")
    return _published(kind, Path(file))


def _published(kind: str, file: Path) -> Reward:
    """Of its file. Frames are seen whole: wide ones in several squares, where the published centre crop would leave parts
    out; HPSv2's stand in one square."""
    from mmspec.core.readers import read_json
    from mmspec.video.rewards.imagereward import ImageRewardScorer
    from mmspec.video.rewards.imagereward_load import imagereward_from_state_dict
    from mmspec.video.rewards.published import hpsv2_from_state_dict, pickscore_from_state_dict
    from mmspec.video.rewards.views import Views

    beside = PUBLISHED[kind] and file.parent / PUBLISHED[kind]
    config = read_json(beside) if beside and beside.is_file() else None
    if kind == "imagereward":
        model = imagereward_from_state_dict(file, config)
        return ImageRewardScorer(model, file.parent / "vocab.txt", Views(model.config.vision.img_size, crops="cover"))
    if kind == "hpsv2":
        return hpsv2_from_state_dict(file)
    reward = pickscore_from_state_dict(file, config)
    return replace(reward, views=Views(reward.encoder.size, crops="cover"))
