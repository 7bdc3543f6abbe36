"""FLASH: pooled pictures and a semi-autoregressive head."""

from mmspec.vlm.drafters.flash.flash_drafter import Flash, FlashConfig

__all__ = ["Flash", "FlashConfig"]
