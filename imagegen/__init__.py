"""Image generation by draft-and-verify: models, adapters, drafters and acceptance rules over one round loop.

Discrete tokens here, of images and of videos frame by frame; continuous ones in `continuous`.
"""

from __future__ import annotations

from mmspec._lazy import lazy

# public name -> module that defines it
_PUBLIC = {
    "Annealing": "mmspec.imagegen.continuous.disa",
    "CSpD": "mmspec.imagegen.continuous.cspd",
    "ContinuousARPipeline": "mmspec.imagegen.continuous.causal.pipeline",
    "CoolSD": "mmspec.imagegen.rules.cool",
    "GSD": "mmspec.imagegen.rules.gsd",
    "Geometry": "mmspec.imagegen.geometry",
    "Guidance": "mmspec.imagegen.sampling",
    "HeadWalk": "mmspec.imagegen.continuous.walk",
    "ImageEagle": "mmspec.imagegen.eagle.drafter",
    "ImageOutput": "mmspec.imagegen.output",
    "ImagePipeline": "mmspec.imagegen.pipeline",
    "Lantern": "mmspec.imagegen.rules.lantern",
    "LanternPlus": "mmspec.imagegen.rules.lantern",
    "LatentUpsampler": "mmspec.imagegen.multiscale.latent_upsampler",
    "Lazy": "mmspec.imagegen.continuous.lazy",
    "LlamaGenPipeline": "mmspec.imagegen.llamagen.pipeline",
    "MARPipeline": "mmspec.imagegen.continuous.pipeline",
    "MuLo": "mmspec.imagegen.multiscale.mulo",
    "PJD": "mmspec.imagegen.rowwise.pjd",
    "PixelUpsampler": "mmspec.imagegen.multiscale.upsampler",
    "Proactive": "mmspec.imagegen.jacobi.tree",
    "Relaxation": "mmspec.imagegen.continuous.acceptance",
    "RowDrafts": "mmspec.imagegen.rowwise.row_drafts",
    "RunJoint": "mmspec.imagegen.rules.run_joint",
    "SCD": "mmspec.imagegen.jacobi.drafter",
    "SJD": "mmspec.imagegen.jacobi.drafter",
    "ScheduledSteps": "mmspec.imagegen.continuous.stack",
    "Warp": "mmspec.imagegen.sampling",
    "ZipAR": "mmspec.imagegen.rowwise.zipar",
    "drafter_from_state_dict": "mmspec.imagegen.eagle.published",
    "kl_from_state_dict": "mmspec.imagegen.continuous.kl.load",
    "llamagen_from_state_dict": "mmspec.imagegen.llamagen.load",
    "load_drafter": "mmspec.imagegen.eagle.checkpoints",
    "mar_from_state_dict": "mmspec.imagegen.continuous.mar.load",
    "pipeline_for": "mmspec.imagegen.adapters.registry",
    "vq_from_state_dict": "mmspec.imagegen.llamagen.load",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
