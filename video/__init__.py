"""Block-autoregressive video: a small model drafts blocks of frames, and a router selects blocks to regenerate."""

from __future__ import annotations

from mmspec._lazy import lazy

# public name -> module that defines it
_PUBLIC = {
    "Advantage": "mmspec.video.routing.learned",
    "AnyFlowVideo": "mmspec.video.adapters.anyflow",
    "BlockCosts": "mmspec.video.decoding.cost_model",
    "BlockPlan": "mmspec.video.model",
    "BlockVideoPipeline": "mmspec.video.pipeline",
    "BlockWork": "mmspec.video.decoding.cost_model",
    "Cached": "mmspec.video.wan.video",
    "CausalWan": "mmspec.video.wan.transformer",
    "ChunkCache": "mmspec.video.chunk_cache",
    "CosineReward": "mmspec.video.rewards.clip",
    "Explore": "mmspec.video.routing.routers",
    "FewStep": "mmspec.video.generation",
    "FlowMap": "mmspec.video.generation",
    "GivenBlockNoise": "mmspec.video.generation",
    "HeliosVideo": "mmspec.video.adapters.helios",
    "Hybrid": "mmspec.video.routing.routers",
    "ImageRewardScorer": "mmspec.video.rewards.imagereward",
    "KeyedBlockNoise": "mmspec.video.generation",
    "Learned": "mmspec.video.routing.learned",
    "PromptEncoder": "mmspec.video.prompt_encoder",
    "Random": "mmspec.video.routing.budgets",
    "Rebuilt": "mmspec.video.wan.rebuilt",
    "Relative": "mmspec.video.routing.routers",
    "SDVG": "mmspec.video.decoding.sdvg",
    "Scheduled": "mmspec.video.adapters.schedulers",
    "SkyReelsVideo": "mmspec.video.adapters.skyreels",
    "StreamingWanVAE": "mmspec.video.vae",
    "Strided": "mmspec.video.routing.budgets",
    "Threshold": "mmspec.video.routing.routers",
    "VideoGuidance": "mmspec.video.adapters.guidance",
    "VideoStopped": "mmspec.video.decoding.output",
    "Views": "mmspec.video.rewards.scores",
    "WanConfig": "mmspec.video.wan.wan_config",
    "WanVideo": "mmspec.video.wan.video",
    "ZeroStarGuidance": "mmspec.video.adapters.guidance",
    "from_diffusers": "mmspec.video.adapters.diffusers_pipelines",
    "hpsv2_from_state_dict": "mmspec.video.rewards.clip",
    "imagereward_from_state_dict": "mmspec.video.rewards.imagereward_load",
    "load_wan": "mmspec.video.wan.checkpoints",
    "pickscore_from_state_dict": "mmspec.video.rewards.clip",
    "replayed_rewards": "mmspec.video.routing.replay",
    "save_wan": "mmspec.video.wan.checkpoints",
    "scored_pairs": "mmspec.video.routing.learned",
    "train_advantage": "mmspec.video.routing.learned",
    "wan_from_state_dict": "mmspec.video.wan.checkpoints",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
