"""What a trial raises."""

from __future__ import annotations


class Differs(Exception):
    """A trial's finding, as the end of a sentence: what the model does instead of what its single steps do."""
