"""Every trained drafter with random weights that lean on the target's state, so that some of its drafts are kept."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmspec.vlm.drafters.shaped import ShapedDrafter
from tests.vlm.tiny import HIDDEN, VOCAB

SIZES = dict(hidden_size=HIDDEN, intermediate_size=48, num_attention_heads=4, vocab_size=VOCAB)


def eagle() -> ShapedDrafter:
    from mmspec.vlm.drafters.eagle import Eagle, EagleConfig

    return leaning(Eagle(EagleConfig(**SIZES)))


def eagle_without_pictures() -> ShapedDrafter:
    from mmspec.vlm.drafters.eagle import Eagle, EagleConfig

    return leaning(Eagle(EagleConfig(**SIZES, pictures="left_out")))


def msd() -> ShapedDrafter:
    from mmspec.vlm.drafters.feature_drafter import FeatureConfig
    from mmspec.vlm.drafters.msd import Msd

    return leaning(Msd(FeatureConfig(**SIZES)))


def leaning(drafter: ShapedDrafter) -> ShapedDrafter:
    """Makes the fusing layer pass the target's state on."""
    with torch.no_grad():
        drafter.fc.weight[:, HIDDEN:].normal_(0, 0.1).add_(torch.eye(HIDDEN))
    return drafter


DRAFTERS: dict[str, Callable[[], ShapedDrafter]] = {
    "eagle": eagle,
    "eagle_without_pictures": eagle_without_pictures,
    "msd": msd,
}


def make(name: str) -> ShapedDrafter:
    """The drafter of this name, the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DRAFTERS[name]().eval().requires_grad_(False)
