"""EAGLE-2, for text and with pictures fused like text."""

from mmspec.vlm.drafters.eagle.drafter import Eagle, EagleConfig

__all__ = ["Eagle", "EagleConfig"]
