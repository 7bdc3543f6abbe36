"""Token Recycling: a tree from a table of the target's own discarded candidates."""

from mmspec.vlm.drafters.token_recycling.drafter import TokenRecycling
from mmspec.vlm.drafters.token_recycling.state import RecyclingState
from mmspec.vlm.drafters.token_recycling.table import RecyclingTable

__all__ = ["RecyclingState", "RecyclingTable", "TokenRecycling"]
