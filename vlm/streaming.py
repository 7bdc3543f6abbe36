"""Streamers: fed run by run as the loop commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def ended(streamer: object | None) -> Iterator[None]:
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
