"""DFlash2: a block from one pass, and a path through each row's best tokens."""

from mmspec.vlm.drafters.dflash2.drafter import DFlash2, DFlash2Config

__all__ = ["DFlash2", "DFlash2Config"]
