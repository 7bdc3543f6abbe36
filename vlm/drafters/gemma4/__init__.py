"""Gemma 4's assistants, which attend to the keys and values in the target's cache."""

from mmspec.vlm.drafters.gemma4.gemma4_drafter import Gemma4Assistant, Gemma4AssistantConfig

__all__ = ["Gemma4Assistant", "Gemma4AssistantConfig"]
