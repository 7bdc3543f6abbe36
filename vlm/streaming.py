"""Streamers of a request, which receive the accepted tokens of every round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def ending(streamer: object | None) -> Iterator[None]:
    """End the streamer after the block, also after an error, so that no reader waits forever."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()


class StreamerFeed:
    """Pass each round's tokens to `put_run(ids, accepted)` of a streamer, or to its `put` if it has no `put_run`."""

    def __init__(self, streamer: object):
        self.streamer = streamer

    def __call__(self, row: int, run: list[int], accepted: int) -> None:
        """Pass on the ids `run` of a round, of which the first `accepted` are draft tokens."""
        if hasattr(self.streamer, "put_run"):
            self.streamer.put_run(run, accepted)
            return
        for token in run:
            self.streamer.put(torch.tensor([token]))


class DeferredStreamer:
    """A streamer that holds the prompt back until the first token, because the request may still be refused.

    Args:
        streamer: The streamer. A refused request does not change it, so another request can use it.
    """

    def __init__(self, streamer: Any):
        self.streamer, self.begun = streamer, False
        self._prompt: list[Any] = []
        if hasattr(streamer, "put_run"):
            self.put_run = self._put_run

    def put(self, value: Any) -> None:
        """Receive the prompt, then tokens."""
        if self._prompt or self.begun:
            self._begin()
            self.streamer.put(value)
        else:
            self._prompt.append(value)

    def end(self) -> None:
        """End the streamer if tokens have been put; otherwise `close` ends it."""
        if self.begun:
            self.streamer.end()

    def close(self) -> None:
        """End the streamer of a request that has finished without a token."""
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
    """A streamer for one row that writes the text of each token and whether the token was drafted.

    A piece of text belongs to the token that completes it, a draft token or a token of the target.

    Args:
        tokenizer: The tokenizer.
        write: Called as `write(text, drafted)` as soon as a token's text is known.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str, bool], None]):
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] = []
        self.shown = ""

    def put(self, value: Any) -> None:
        """Ignore the prompt."""

    def put_run(self, run: list[int], accepted: int) -> None:
        """Write the text of a round's ids, of which the first `accepted` are draft tokens."""
        for place, token in enumerate(run):
            self.ids.append(token)
            self._show(place < accepted)

    def end(self) -> None:
        """Write the text that was held back."""
        self._show(False, last=True)

    def _show(self, drafted: bool, last: bool = False) -> None:
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True).lstrip()
        # a character of several tokens is unreadable until its last token, and an unfinished tail may still change
        if text.startswith(self.shown) and (last or not text.endswith("\ufffd")):
            if len(text) > len(self.shown):
                self.write(text[len(self.shown) :], drafted)
            self.shown = text
