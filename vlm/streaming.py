"""Streamers of a request, which receive the accepted tokens of every round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from os.path import commonprefix
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
        if hasattr(self.streamer, "put_run"):
            self.streamer.put_run(run, accepted)
            return
        for token in run:
            self.streamer.put(torch.tensor([token]))


class DeferredStreamer:
    """A streamer that holds the prompt back until the first token, because the request may still be refused. A refused
    request does not change it, so another request can use it."""

    def __init__(self, streamer: Any):
        self.streamer, self.begun = streamer, False
        self._prompt: list[Any] = []
        if hasattr(streamer, "put_run"):
            self.put_run = self._put_run

    def put(self, value: Any) -> None:
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
    """A streamer for one row that calls `write(text, drafted)` as soon as a token's text is known. A piece of text
    belongs to the token that completes it. Text that later tokens may change is held back. Where a token changes text
    that has been written, writing goes on from the common prefix."""

    def __init__(self, tokenizer: Any, write: Callable[[str, bool], None]):
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] = []
        self.text = self.shown = ""
        self._drafted: list[bool] = []  # of each character of `text`

    def put(self, value: Any) -> None:
        """Ignore the prompt."""

    def put_run(self, run: list[int], accepted: int) -> None:
        for place, token in enumerate(run):
            self.ids.append(token)
            text = self.tokenizer.decode(self.ids, skip_special_tokens=True).lstrip()
            same = len(commonprefix([self.text, text]))
            self._drafted[same:] = [place < accepted] * (len(text) - same)
            self.text = text
            self._show(self._settled())

    def end(self) -> None:
        self._show(len(self.text))

    def _settled(self) -> int:
        """Return the number of characters that later tokens leave as they are."""
        # a character of several tokens is unreadable until its last token
        end = len(self.text.rstrip("\ufffd"))
        if getattr(self.tokenizer, "clean_up_tokenization_spaces", False):
            # cleaning removes the spaces of a sign or a contraction, as in "do n ' t"
            end = self.text.rfind(" ", 0, max(self.text.rfind(" ", 0, end), 0))
        return end

    def _show(self, end: int) -> None:
        start = len(commonprefix([self.shown, self.text[: max(end, 0)]]))
        if start >= end:
            return
        self.shown = self.text[:end]
        for drafted, places in groupby(range(start, end), self._drafted.__getitem__):
            self.write("".join(self.text[place] for place in places), drafted)
