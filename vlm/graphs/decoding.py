"""A request whose rounds are captured: the host launches them and reads what came of the one before."""

from __future__ import annotations

from time import perf_counter
from warnings import warn

import torch

from mmspec.core.graphs.mailbox import Mailbox
from mmspec.core.graphs.static import Refused
from mmspec.core.loop import Decoding
from mmspec.vlm.graphs.refusal import check
from mmspec.vlm.graphs.rounds import Rounds, width_of
from mmspec.vlm.graphs.seat import Seat

_AHEAD = 512  # tokens a seat has room for at first


class CapturedDecoding(Decoding):
    """`Decoding` whose rounds behind the prefill run on a seat, see `Rounds`; the tokens are those of the ordinary loop. What
    no captured round serves goes on in that loop, and a warning says why.

    Exact as the ordinary loop is: it is the same drafts, passes, rule and random numbers.
    Of its stats target_s holds whole rounds, and drafter_passes those of rounds at their full length.
    """

    def __init__(self, *args: object, rounds: Rounds, **kwargs: object):
        super().__init__(*args, **kwargs)
        self.rounds, self.seat, self.ordinary = rounds, None, False
        self.mail: Mailbox | None = None
        self._slots: list[int] = []  # that every row has committed at most, as far as the host has read

    @property
    def captured(self) -> bool:
        """Whether its rounds run on a seat, or have."""
        return bool(self._slots)

    @torch.no_grad()
    def step(self) -> bool:
        if self.ordinary or self._state is None:
            more = super().step()
            if more and not self.ordinary:
                self._sit()
            return more
        stats, started = self.stats, perf_counter()
        with stats.time("target"):
            self._make_room()
            self.seat.run()
            self.mail.post(self.seat.target.lines)
            stats.drafter_passes += self.seat.passes
        with stats.time("verify"):
            lines = self.mail.read()
            if lines is not None:
                self._take(lines)
        self.keys.round += 1
        stats.took(perf_counter() - started)
        if self.target.done:
            self._rise()
        return not self.target.done

    def _sit(self) -> None:
        """Moves the request to a seat behind its prefill, or says why it stays."""
        try:
            check(self.target, self._state)
            self.width = width_of(self._state)
            kept = [self.target.cache, *([self._state.cache] if hasattr(self._state, "cache") else [])]
            rows = [max(lengths) for lengths in zip(*(cache.lengths for cache in kept), strict=True)]
            ahead = min(self.target.most or _AHEAD, _AHEAD) + 2 * self.width
            self.mail = Mailbox(self.target.device, self.rounds.late)
            with self.stats.time("target"):
                self.seat = self._seat(self.target, self._state, self.keys, max(rows) + ahead)
            self._slots = rows
        except Refused as refused:
            self.ordinary = True
            warn(f"capture: {refused}; the ordinary loop runs instead", RuntimeWarning, stacklevel=2)

    def _seat(self, target: object, state: object, keys: object, slots: int) -> Seat:
        return self.rounds.seat(target, state, self.rule, keys, slots, self.width)

    def _make_room(self) -> None:
        """Moves to a larger seat where the coming round might not fit: rounds unread may have kept all they drafted."""
        needed = max(self._slots) + self.width * (len(self.mail) + 1)
        if needed > self.seat.bound:
            old = self.seat
            self.seat = self._seat(old.target, old.state, old.keys, max(2 * old.bound, needed))
            self.rounds.release(old)

    def _take(self, lines: list[list[int]]) -> None:
        """What the host learns of a round."""
        stats, target = self.stats, self.target
        accepted = target.take_lines(lines[: target.batch], self.width, fails=True, runs=True)
        self._slots = [slots + len(path) for slots, path in zip(self._slots, target.paths, strict=True)]
        stats.target_passes += 1
        stats.row_passes += sum(one is not None for one in accepted)
        stats.accepted.append(accepted)
        stats.emitted = list(target.emitted)

    def _rise(self) -> None:
        """Gives the seat back. Rounds behind the last one changed nothing: their rows had stopped."""
        if self.seat is not None:
            self.rounds.release(self.seat)
            self.seat = None
