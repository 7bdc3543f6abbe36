"""SpecDec++: an acceptance head that ends drafts."""

from mmspec.vlm.drafters.specdecpp.control import AcceptanceGrowth, AcceptanceStop
from mmspec.vlm.drafters.specdecpp.drafter import AcceptanceConfig, AcceptanceHead

__all__ = ["AcceptanceConfig", "AcceptanceGrowth", "AcceptanceHead", "AcceptanceStop"]
