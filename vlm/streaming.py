"""Streamers: fed run by run as the loop commits."""

from __future__ import annotations

import torch


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
