"""Block-autoregressive video: a small model drafts blocks of frames, a router decides which of them the large one redraws."""

from __future__ import annotations

from mmspec._lazy import lazy

# public name -> module that defines it
_PUBLIC = {
    "AnyFlowVideo": "mmspec.video.adapters.anyflow",
    "BlockPlan": "mmspec.video.plan",
    "Cached": "mmspec.video.wan.cached",
    "CausalWan": "mmspec.video.wan.transformer",
    "ChunkCache": "mmspec.video.chunk_cache",
    "CosineReward": "mmspec.video.rewards.cosine",
    "FewStep": "mmspec.video.generation.few_step",
    "FlowMap": "mmspec.video.generation.flow_map",
    "GivenBlockNoise": "mmspec.video.generation.noise",
    "HeliosVideo": "mmspec.video.adapters.helios",
    "ImageRewardScorer": "mmspec.video.rewards.imagereward",
    "KeyedBlockNoise": "mmspec.video.generation.noise",
    "Rebuilt": "mmspec.video.wan.rebuilt",
    "Scheduled": "mmspec.video.generation.scheduled",
    "SkyReelsVideo": "mmspec.video.adapters.skyreels",
    "StreamingWanVAE": "mmspec.video.vae.wan",
    "VideoGuidance": "mmspec.video.adapters.guidance",
    "Views": "mmspec.video.rewards.views",
    "WanConfig": "mmspec.video.wan.config",
    "WanVideo": "mmspec.video.wan.video",
    "hpsv2_from_state_dict": "mmspec.video.rewards.published",
    "imagereward_from_state_dict": "mmspec.video.rewards.imagereward_load",
    "load_wan": "mmspec.video.wan.files",
    "pickscore_from_state_dict": "mmspec.video.rewards.published",
    "save_wan": "mmspec.video.wan.files",
    "wan_from_state_dict": "mmspec.video.wan.load",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
