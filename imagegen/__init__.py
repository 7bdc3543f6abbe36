"""Image generation by draft-and-verify: models, adapters, drafters and acceptance rules over one round loop.

Discrete tokens here, of images and of videos frame by frame; continuous ones in `continuous`.
"""

from __future__ import annotations

from mmspec._lazy import lazy

# public name -> module that defines it
_PUBLIC = {
    "Annealing": "mmspec.imagegen.continuous.schedules.step_annealing",
    "CSpD": "mmspec.imagegen.continuous.cspd.drafter",
    "CausalRequest": "mmspec.imagegen.continuous.causal.pipeline",
    "ContinuousARPipeline": "mmspec.imagegen.continuous.causal.pipeline",
    "CoolSD": "mmspec.imagegen.rules.cool",
    "GSD": "mmspec.imagegen.rules.gsd",
    "Geometry": "mmspec.imagegen.geometry",
    "Guidance": "mmspec.imagegen.target",
    "HeadSampling": "mmspec.imagegen.continuous.head_sampling.sampling:HeadSampling",
    "ImageEagle": "mmspec.imagegen.eagle.drafter",
    "ImageOutput": "mmspec.imagegen.base_pipeline",
    "ImagePipeline": "mmspec.imagegen.pipeline",
    "ImageRequest": "mmspec.imagegen.pipeline",
    "Lantern": "mmspec.imagegen.rules.lantern",
    "LanternPlus": "mmspec.imagegen.rules.lantern",
    "LatentUpsampler": "mmspec.imagegen.multiscale.upsamplers",
    "Lazy": "mmspec.imagegen.continuous.schedules.feature_cache",
    "LlamaGenPipeline": "mmspec.imagegen.llamagen.pipeline",
    "MARPipeline": "mmspec.imagegen.continuous.mar.pipeline",
    "MARRequest": "mmspec.imagegen.continuous.masked_decoding",
    "MuLo": "mmspec.imagegen.multiscale.mulo",
    "PJD": "mmspec.imagegen.rowwise.row_parallel",
    "PixelUpsampler": "mmspec.imagegen.multiscale.upsamplers",
    "Proactive": "mmspec.imagegen.jacobi.tree",
    "Relaxation": "mmspec.imagegen.continuous.cspd.acceptance",
    "RowDrafts": "mmspec.imagegen.rowwise.row_drafts",
    "RunJoint": "mmspec.imagegen.rules.run_joint",
    "SCD": "mmspec.imagegen.jacobi.coupled",
    "SJD": "mmspec.imagegen.jacobi.drafter",
    "ScheduledSteps": "mmspec.imagegen.continuous.schedules.scheduled_steps",
    "Warp": "mmspec.imagegen.target",
    "ZipAR": "mmspec.imagegen.rowwise.row_parallel",
    "drafter_from_state_dict": "mmspec.imagegen.eagle.loading",
    "kl_from_state_dict": "mmspec.imagegen.continuous.kl",
    "llamagen_from_state_dict": "mmspec.imagegen.llamagen.load",
    "load_drafter": "mmspec.imagegen.eagle.loading",
    "mar_from_state_dict": "mmspec.imagegen.continuous.mar.load",
    "pipeline_for": "mmspec.imagegen.adapters.registry",
    "vq_from_state_dict": "mmspec.imagegen.llamagen.load",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
