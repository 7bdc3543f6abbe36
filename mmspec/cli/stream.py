"""Text on the screen while it is generated, with drafted runs in one colour and the target's own tokens in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DRAFTED, OWN = "green", "bold yellow"


class ColouredRuns:
    """A streamer for one row: `write(text, style)` is called as soon as a token's text is known.

    A piece of text takes the colour of the token that completes it: DRAFTED for an accepted draft, OWN for what the
    target itself put there.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str, str], None]):
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] = []
        self.shown = ""

    def put(self, value: Any) -> None:
        """The prompt, which is not shown."""

    def put_run(self, run: list[int], accepted: int) -> None:
        """One round: ids, the first `accepted` of them drafted."""
        for place, token in enumerate(run):
            self.ids.append(token)
            self._show(DRAFTED if place < accepted else OWN)

    def end(self) -> None:
        """Shows what was held back."""
        self._show(OWN, last=True)

    def _show(self, style: str, last: bool = False) -> None:
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True).lstrip()
        # a character of several tokens is unreadable until its last one, and an unfinished tail may still change
        if text.startswith(self.shown) and (last or not text.endswith("\ufffd")):
            if len(text) > len(self.shown):
                self.write(text[len(self.shown) :], style)
            self.shown = text
