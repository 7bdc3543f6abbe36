from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Stats:
    """Counters and wall-clock seconds of a request.

    Attributes:
        rule: The name of the rule.
        drafter: The name of the drafter.
        exact: Whether the rule keeps the target's distribution.
        target_passes: Passes of the target, the prefill included. A regenerating target counts only the rounds in which
            it generated a value.
        drafter_passes: Forward passes of the drafter's model.
        row_passes: Target passes, summed over the rows still running in each.
        accepted: Per round and row, the number of accepted drafted values; None for a stopped row.
        emitted: Per row, the number of generated values.
        prefill_s: The first pass.
        draft_s: `propose` and `observe`.
        target_s: Later target passes, and regeneration.
        verify_s: Weigh, select, resample and commit.
        other_s: The rest of the call.
        paid: The total variation from the target's distribution that accepted values cost, summed over all of them, where
            a relaxed rule knows it, such as "fuzzy"; else None. See `mean_paid`.
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
    paid: float | None = None

    @property
    def accept_length(self) -> float:
        """Values emitted per target pass and row, the bonus value included (1.0 is plain decoding)."""
        return sum(self.emitted) / max(self.row_passes, 1)

    @property
    def mean_paid(self) -> float | None:
        """The mean total variation from the target's distribution of an emitted value; None where it is unknown."""
        return None if self.paid is None else self.paid / max(sum(self.emitted), 1)

    def add_paid(self, paid: Tensor | None) -> None:
        """Add the total variation that the accepted values of a round cost, float [B]; None adds nothing."""
        if paid is not None:
            self.paid = (self.paid or 0.0) + float(paid.sum())

    @contextmanager
    def time(self, part: str):
        """Add the time of the block to `<part>_s`, without the time of nested parts."""
        start, before = perf_counter(), sum(self.seconds().values())
        try:
            yield
        finally:
            inside = sum(self.seconds().values()) - before
            setattr(self, f"{part}_s", getattr(self, f"{part}_s") + perf_counter() - start - inside)

    def took(self, seconds: float) -> None:
        """Receive the time of every round; domains that record it override this."""

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every part that the loop times: prefill, draft, target and verify."""
        return {part: getattr(self, f"{part}_s") for part in ("prefill", "draft", "target", "verify")}

    def close(self, seconds: float) -> None:
        """Set `other_s` to the part of a call's seconds that no other part covers."""
        self.other_s = seconds - sum(self.seconds().values())

    def to_dict(self) -> dict:
        """Return all fields, `accept_length` and `mean_paid`, for JSON."""
        return {**asdict(self), "accept_length": self.accept_length, "mean_paid": self.mean_paid}
