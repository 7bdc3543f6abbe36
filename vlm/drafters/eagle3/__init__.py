"""EAGLE-3: three levels of the target's states, and a head over part of the vocabulary."""

from mmspec.vlm.drafters.eagle3.eagle3_config import Eagle3Config, levels_of
from mmspec.vlm.drafters.eagle3.eagle3_drafter import MOST_DRAFT_TOKENS, Eagle3

__all__ = ["Eagle3", "Eagle3Config", "MOST_DRAFT_TOKENS", "levels_of"]
