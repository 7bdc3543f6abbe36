"""Text on the screen while it is generated, with drafted runs in one colour and the target's own tokens in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmspec.vlm.streaming import TextRuns

DRAFTED, OWN = "green", "bold yellow"


class ColouredRuns(TextRuns):
    """`TextRuns` that calls `write(text, style)`: DRAFTED for an accepted draft, OWN for what the target itself put there."""

    def __init__(self, tokenizer: Any, write: Callable[[str, str], None]):
        super().__init__(tokenizer, lambda text, drafted: write(text, DRAFTED if drafted else OWN))
