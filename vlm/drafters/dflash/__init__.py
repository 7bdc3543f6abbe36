"""DFlash: a block of tokens from one pass, each from its own marginal law."""

from mmspec.vlm.drafters.context_config import ContextConfig as DFlashConfig
from mmspec.vlm.drafters.dflash.drafter import DFlash, taps_of

__all__ = ["DFlash", "DFlashConfig", "taps_of"]
