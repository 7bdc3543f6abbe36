"""Hydra and Hydra++: sequentially dependent heads."""

from mmspec.vlm.drafters.hydra.drafter import Hydra, HydraConfig
from mmspec.vlm.drafters.hydra.modules import Entry
from mmspec.vlm.drafters.hydra.state import HydraState, PrefixState

__all__ = ["Entry", "Hydra", "HydraConfig", "HydraState", "PrefixState"]
