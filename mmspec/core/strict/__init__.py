"""Passes whose bits do not depend on what else they compute: every value gets what a pass over it alone would give it."""

from mmspec.core.strict.mode import Strict, over_draft, over_prompt, single_steps

__all__ = ["Strict", "over_draft", "over_prompt", "single_steps"]
