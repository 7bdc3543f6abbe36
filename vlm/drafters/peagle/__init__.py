"""P-EAGLE: EAGLE-3 whose depths are drafted side by side."""

from mmspec.vlm.drafters.peagle.drafter import PEagle, PEagleConfig

__all__ = ["PEagle", "PEagleConfig"]
