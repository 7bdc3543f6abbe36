"""What a request cost and what it got."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter


@dataclass(slots=True)
class Stats:
    """Counters and wall-clock seconds of one request.

    target_passes: passes of the target, the prefill among them; where it makes again only what was rejected, the rounds in
    which it made something.   drafter_passes: forward passes of the drafter's model.
    accepted: per round, per row, the drafted values that were kept; None for a row that had stopped.
    emitted: per row, values generated.   row_passes: target passes summed over the rows still running in each.
    prefill_s: the first pass.  draft_s: propose and observe.  target_s: the target's later passes, and what it makes again.
    verify_s: weigh, select, resample and commit.   other_s: the rest of the call.
    exact: the rule keeps the target's law.   rule, drafter: names.
    """

    rule: str = "exact"
    drafter: str = "none"
    exact: bool = True
    target_passes: int = 0
    drafter_passes: int = 0
    row_passes: int = 0
    accepted: list[list[int | None]] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0

    @property
    def accept_length(self) -> float:
        """Values emitted per target pass and row, the bonus included (1.0 is plain decoding)."""
        return sum(self.emitted) / max(self.row_passes, 1)

    @contextmanager
    def time(self, part: str):
        """Adds the time of the block to `<part>_s`; parts that are timed inside it have theirs alone."""
        start, before = perf_counter(), sum(self.seconds().values())
        try:
            yield
        finally:
            inside = sum(self.seconds().values()) - before
            setattr(self, f"{part}_s", getattr(self, f"{part}_s") + perf_counter() - start - inside)

    def took(self, seconds: float) -> None:
        """Told of every round how long it took, for domains that keep it."""

    def seconds(self) -> dict[str, float]:
        """Of every part the loop times: prefill, draft, target and verify."""
        return {part: getattr(self, f"{part}_s") for part in ("prefill", "draft", "target", "verify")}

    def close(self, seconds: float) -> None:
        """Notes as `other_s` what of a whole call's seconds no part has."""
        self.other_s = seconds - sum(self.seconds().values())

    def to_dict(self) -> dict:
        """All fields and `accept_length`, for JSON."""
        return {**asdict(self), "accept_length": self.accept_length}
