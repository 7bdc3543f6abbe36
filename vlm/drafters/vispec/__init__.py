"""ViSpec: compressed pictures and one global vector per picture."""

from mmspec.vlm.drafters.vispec.drafter import ViSpec, ViSpecConfig

__all__ = ["ViSpec", "ViSpecConfig"]
