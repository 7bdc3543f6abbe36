"""A smaller transformers model of the same vocabulary."""

from mmspec.vlm.drafters.small_model.drafter import SmallModel
from mmspec.vlm.drafters.small_model.state import SmallModelState

__all__ = ["SmallModel", "SmallModelState"]
