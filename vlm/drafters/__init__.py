"""Drafters of text tokens. Each holds settings and weights; a request's state is what its `open` returns."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {
    "AcceptanceHead": "mmspec.vlm.drafters.specdecpp",
    "AcceptanceStop": "mmspec.vlm.drafters.specdecpp",
    "Chain": "mmspec.core.drafting.shapes",
    "DFlash": "mmspec.vlm.drafters.dflash",
    "DFlash2": "mmspec.vlm.drafters.dflash2",
    "DSpark": "mmspec.vlm.drafters.dspark",
    "DynamicTree": "mmspec.core.drafting.shapes",
    "Eagle": "mmspec.vlm.drafters.eagle",
    "Eagle3": "mmspec.vlm.drafters.eagle3",
    "Flash": "mmspec.vlm.drafters.flash.drafter",
    "Gemma4Assistant": "mmspec.vlm.drafters.gemma4",
    "Goodput": "mmspec.core.goodput",
    "Hydra": "mmspec.vlm.drafters.hydra",
    "Medusa": "mmspec.vlm.drafters.medusa",
    "Merged": "mmspec.vlm.drafters.merged",
    "Msd": "mmspec.vlm.drafters.msd",
    "Mtp": "mmspec.vlm.drafters.mtp",
    "PEagle": "mmspec.vlm.drafters.peagle",
    "PromptLookup": "mmspec.vlm.drafters.prompt_lookup",
    "RecyclingTable": "mmspec.vlm.drafters.token_recycling",
    "SmallModel": "mmspec.vlm.drafters.small_model",
    "SpecVlm": "mmspec.vlm.drafters.specvlm",
    "StaticTree": "mmspec.core.drafting.shapes",
    "TokenRecycling": "mmspec.vlm.drafters.token_recycling",
    "ViSpec": "mmspec.vlm.drafters.vispec",
    "VisionSkip": "mmspec.vlm.drafters.viskip",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
