"""Streamers: fed run by run as the loop commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def ending(streamer: object | None) -> Iterator[None]:
    """Ends the streamer behind the block, after errors too, so that no reader waits for ever."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()


class StreamerFeed:
    """Passes accepted runs on: to `put_run(ids, accepted)` where the streamer has it, else token by token to `put`."""

    def __init__(self, streamer: object):
        self.streamer = streamer

    def __call__(self, row: int, run: list[int], accepted: int) -> None:
        """run: ids row `row` emitted this round, the first `accepted` of them drafted ones."""
        if hasattr(self.streamer, "put_run"):
            self.streamer.put_run(run, accepted)
            return
        for token in run:
            self.streamer.put(torch.tensor([token]))


class DeferredStreamer:
    """Stands in for a streamer while it is open whether the request is served: the prompt waits for the first token.

    Args:
        streamer: The streamer. A refused request leaves it untouched, so that another request may use it.
    """

    def __init__(self, streamer: Any):
        self.streamer, self.begun = streamer, False
        self._prompt: list[Any] = []
        if hasattr(streamer, "put_run"):
            self.put_run = self._put_run

    def put(self, value: Any) -> None:
        """The prompt at first, then tokens."""
        if self._prompt or self.begun:
            self._begin()
            self.streamer.put(value)
        else:
            self._prompt.append(value)

    def end(self) -> None:
        """The end of a request that has given tokens; that of another one waits for `close`."""
        if self.begun:
            self.streamer.end()

    def close(self) -> None:
        """The end of a request that is over without a token."""
        if not self.begun:
            self._begin()
            self.streamer.end()

    def _put_run(self, run: list[int], accepted: int) -> None:
        self._begin()
        self.streamer.put_run(run, accepted)

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            for value in self._prompt:
                self.streamer.put(value)


class TextRuns:
    """A streamer for one row: `write(text, drafted)` is called as soon as a token's text is known.

    A piece of text belongs to the token that completes it: to an accepted draft, or to what the target itself put there.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str, bool], None]):
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] = []
        self.shown = ""

    def put(self, value: Any) -> None:
        """The prompt, which is not shown."""

    def put_run(self, run: list[int], accepted: int) -> None:
        """One round: ids, the first `accepted` of them drafted."""
        for place, token in enumerate(run):
            self.ids.append(token)
            self._show(place < accepted)

    def end(self) -> None:
        """Shows what was held back."""
        self._show(False, last=True)

    def _show(self, drafted: bool, last: bool = False) -> None:
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True).lstrip()
        # a character of several tokens is unreadable until its last one, and an unfinished tail may still change
        if text.startswith(self.shown) and (last or not text.endswith("\ufffd")):
            if len(text) > len(self.shown):
                self.write(text[len(self.shown) :], drafted)
            self.shown = text
