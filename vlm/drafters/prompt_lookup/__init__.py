"""Prompt lookup decoding: n-gram matches, without a model."""

from mmspec.vlm.drafters.prompt_lookup.drafter import PromptLookup
from mmspec.vlm.drafters.prompt_lookup.state import LookupState, NgramIndex

__all__ = ["LookupState", "NgramIndex", "PromptLookup"]
