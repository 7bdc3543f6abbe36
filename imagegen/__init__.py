"""Image generation by draft-and-verify: discrete tokens, for images and for videos by frame; `continuous` has vectors."""

from __future__ import annotations

from mmspec._lazy import lazy
from mmspec.methods import methods

# public name -> module that defines it
_PUBLIC = {
    "Annealing": "mmspec.imagegen.continuous.schedules.step_annealing",
    "CSpD": "mmspec.imagegen.continuous.cspd.cspd_drafter",
    "CausalRequest": "mmspec.imagegen.continuous.causal.pipeline",
    "ContinuousARPipeline": "mmspec.imagegen.continuous.causal.pipeline",
    "Geometry": "mmspec.imagegen.geometry",
    "GridTable": "mmspec.imagegen.grid_memory",
    "Guidance": "mmspec.imagegen.target",
    "HeadSampling": "mmspec.imagegen.continuous.head_sampling.sampling:HeadSampling",
    "ImageEagle": "mmspec.imagegen.eagle.image_eagle",
    "ImageOutput": "mmspec.imagegen.base_pipeline",
    "ImagePipeline": "mmspec.imagegen.pipeline",
    "ImageRequest": "mmspec.imagegen.pipeline",
    "LatentUpsampler": "mmspec.imagegen.multiscale.upsamplers",
    "LlamaGenPipeline": "mmspec.imagegen.llamagen.pipeline",
    "MARPipeline": "mmspec.imagegen.continuous.mar.pipeline",
    "MARRequest": "mmspec.imagegen.continuous.mar.request",
    "MuLo": "mmspec.imagegen.multiscale.mulo",
    "PixelUpsampler": "mmspec.imagegen.multiscale.upsamplers",
    "Proactive": "mmspec.imagegen.jacobi.tree",
    "Relaxation": "mmspec.imagegen.continuous.cspd.acceptance",
    "RowDrafts": "mmspec.imagegen.rowwise.row_drafts",
    "ScheduledSteps": "mmspec.imagegen.continuous.schedules.scheduled_steps",
    "Warp": "mmspec.imagegen.target",
    "drafter_from_state_dict": "mmspec.imagegen.eagle.loading",
    "kl_from_state_dict": "mmspec.imagegen.continuous.kl",
    "llamagen_from_state_dict": "mmspec.imagegen.llamagen.load",
    "load_drafter": "mmspec.imagegen.eagle.loading",
    "mar_from_state_dict": "mmspec.imagegen.continuous.mar.load",
    "pipeline_for": "mmspec.imagegen.adapters.registry",
    "vq_from_state_dict": "mmspec.imagegen.llamagen.load",
}

# every class that is registered as a method is public
for _home, _, _name in (spec.home.partition(":") for spec in methods()):
    if _home.startswith(f"{__name__}.") and _name[0].isupper():
        _PUBLIC[_name] = _home

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
