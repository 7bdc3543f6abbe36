"""The round's protocols under the path that pages name."""

from mmspec.core.round.loop import DecodingRun, Drafter, DraftState, Memoryless, NoDraft, Target

__all__ = ["DecodingRun", "DraftState", "Drafter", "Memoryless", "NoDraft", "Target"]
