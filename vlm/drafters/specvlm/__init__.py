"""SpecVLM: an elastic visual compressor in front of EAGLE-2's layer."""

from mmspec.vlm.drafters.specvlm.specvlm_drafter import (
    BRANCHES,
    COMPOSITIONS,
    Branch,
    Composition,
    SpecVlm,
    SpecVlmConfig,
    question_state,
)

__all__ = ["BRANCHES", "Branch", "COMPOSITIONS", "Composition", "SpecVlm", "SpecVlmConfig", "question_state"]
