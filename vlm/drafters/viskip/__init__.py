"""ViSkip: no draft where the next token leans on the pictures."""

from mmspec.vlm.drafters.viskip.drafter import VisionSkip
from mmspec.vlm.drafters.viskip.state import VisionSkipState, reliance

__all__ = ["VisionSkip", "VisionSkipState", "reliance"]
