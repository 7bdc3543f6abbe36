"""Block-autoregressive video: a small model drafts blocks of frames, a router decides which of them the large one redraws."""

from __future__ import annotations

from mmspec._lazy import lazy

# public name -> module that defines it
_PUBLIC = {
    "Advantage": "mmspec.video.routing.learned",
    "AnyFlowVideo": "mmspec.video.adapters.anyflow",
    "BlockCosts": "mmspec.video.decoding.timing",
    "BlockPlan": "mmspec.video.plan",
    "BlockVideoPipeline": "mmspec.video.pipeline",
    "BlockWork": "mmspec.video.decoding.timing",
    "Cached": "mmspec.video.wan.cached",
    "CausalWan": "mmspec.video.wan.transformer",
    "ChunkCache": "mmspec.video.chunk_cache",
    "CosineReward": "mmspec.video.rewards.cosine",
    "Explore": "mmspec.video.routing.mixed",
    "FewStep": "mmspec.video.generation.few_step",
    "FlowMap": "mmspec.video.generation.flow_map",
    "GivenBlockNoise": "mmspec.video.generation.noise",
    "HeliosVideo": "mmspec.video.adapters.helios",
    "Hybrid": "mmspec.video.routing.mixed",
    "ImageRewardScorer": "mmspec.video.rewards.imagereward",
    "KeyedBlockNoise": "mmspec.video.generation.noise",
    "Learned": "mmspec.video.routing.learned",
    "PromptEncoder": "mmspec.video.text",
    "Random": "mmspec.video.routing.budgets",
    "Rebuilt": "mmspec.video.wan.rebuilt",
    "Relative": "mmspec.video.routing.thresholds",
    "SDVG": "mmspec.video.decoding.sdvg",
    "Scheduled": "mmspec.video.generation.scheduled",
    "SkyReelsVideo": "mmspec.video.adapters.skyreels",
    "StreamingWanVAE": "mmspec.video.vae.wan",
    "Strided": "mmspec.video.routing.budgets",
    "Threshold": "mmspec.video.routing.thresholds",
    "VideoGuidance": "mmspec.video.adapters.guidance",
    "VideoStopped": "mmspec.video.decoding.output",
    "Views": "mmspec.video.rewards.views",
    "WanConfig": "mmspec.video.wan.config",
    "WanVideo": "mmspec.video.wan.video",
    "ZeroStarGuidance": "mmspec.video.adapters.guidance",
    "from_diffusers": "mmspec.video.adapters.whole_pipelines",
    "hpsv2_from_state_dict": "mmspec.video.rewards.published",
    "imagereward_from_state_dict": "mmspec.video.rewards.imagereward_load",
    "load_wan": "mmspec.video.wan.files",
    "pickscore_from_state_dict": "mmspec.video.rewards.published",
    "save_wan": "mmspec.video.wan.files",
    "scored_pairs": "mmspec.video.routing.training",
    "train_advantage": "mmspec.video.routing.training",
    "wan_from_state_dict": "mmspec.video.wan.load",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
