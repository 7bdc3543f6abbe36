"""Block-autoregressive video: a small model drafts blocks of frames, a router decides which of them the large one redraws."""

from __future__ import annotations

from mmspec._lazy import lazy

# public name -> module that defines it
_PUBLIC = {
    "CosineReward": "mmspec.video.rewards.cosine",
    "ImageRewardScorer": "mmspec.video.rewards.imagereward",
    "StreamingWanVAE": "mmspec.video.vae.wan",
    "Views": "mmspec.video.rewards.views",
    "hpsv2_from_state_dict": "mmspec.video.rewards.published",
    "imagereward_from_state_dict": "mmspec.video.rewards.imagereward_load",
    "pickscore_from_state_dict": "mmspec.video.rewards.published",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
