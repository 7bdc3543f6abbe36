"""What a bandit over draft lengths works with: its constants, and the part that one request has in its decisions."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BanditSettings:
    """Constants of a `DraftLengthBandit`. Gains are ratios to plain rounds."""

    plain_rounds: int = 3  # rounds without a draft before anything is drafted
    short: int = 1  # indices of the lengths that are tried first
    long: int = 5
    hold: int = 2  # rounds a window stays longer than it takes to settle
    worth: int = 4  # values that must be left for a first look at the drafter, or for a probe
    hopeful: int = 24  # drafts during which the bandit is optimistic about lengths it hardly knows, less and less so
    credit: int = 500  # plain rounds that count as spent from the start
    enter: float = 0.04  # the gain at which drafting starts
    leave: float = 0.01  # the gain below which drafting ends
    probe: int = 2  # rounds of a probe, behind those in which a window settles
    cold: int = 2  # first rounds of a request, which are slower than the next
    late: int = 32  # values left when rows that stand together are probed
    first_wait: int = 16  # rounds between two probes of a drafter that does not pay, doubled each time
    last_wait: int = 256
    excursion: int = 16  # rounds between two excursions
    stale: int = 32  # age at which a length is looked at again
    stale_plain: int = 96  # the same for plain rounds; it is `excursion` where the gain is below `clear`
    clear: float = 1.25
    soon: int = 6  # rounds between two excursions while a gain below `narrow` rests on fewer than `sure` comparisons
    narrow: float = 1.5
    sure: int = 16


@dataclass(slots=True)
class BanditRequest:
    """One request's part.

    deepest: longest draft that can be asked for; None where the drafter's shape is fixed, which is then length 1 of 1.
    lengths: those worth telling apart, ascending; empty for all up to `deepest`.   settling: rounds until a draft of another
        length than before is what it will be.
    fresh: the drafter has not drafted, so has not read the prompt.   prompt: its length, 1 where unknown.
    skipped: rounds since the last draft.   probe_rounds: rounds left of a probe.   probe_gain: what it has gained so far.
    hold_rounds: rounds for which the length stays.   last, same: the length of the last round, and how often it came in a row.
    emitted: values of the longest row, were this round to end it with one more.
    left: values the request can still emit at most, None where unknown.   whole: it will emit all of them.
    together: its rows stand at one place as long as nothing is drafted, where plain rounds cost least: what does not pay is
        probed near the end, so that the rest costs no more than it has to.   begun: rounds so far.
    """

    deepest: int | None
    prompt: int = 1
    lengths: tuple[int, ...] = ()
    settling: int = 0
    whole: bool = False
    together: bool = False
    begun: int = 0
    fresh: bool = True
    skipped: int = 0
    probe_rounds: int = 0
    probe_gain: float = 0.0
    hold_rounds: int = 0
    last: int = 0
    same: int = 0
    emitted: list[int] = field(default_factory=lambda: [0])
    left: int | None = None

    def __post_init__(self) -> None:
        self.lengths = self.lengths or tuple(range(1, self.levels + 1))

    @property
    def levels(self) -> int:
        """The number of lengths above 0 that a table of costs has."""
        return self.deepest or 1

    def within(self, length: int) -> int:
        """`length`, or as much of it as the request has room for; windows end with the request by themselves."""
        if self.deepest is None or self.left is None or self.settling:
            return length
        return min(length, self.left - 1)

    def cut(self, length: int) -> bool:
        """Whether the request's end cut a window short, which then tells nothing of its length."""
        return self.settling > 0 and self.left is not None and length >= self.left

    def opening(self, settings: BanditSettings) -> tuple[int, ...]:
        """The lengths of the first rounds, plain ones in between: lengths compare best where the machine was the same."""
        lengths, last = self.lengths, len(self.lengths) - 1
        if self.settling:
            return (lengths[min(1, last)], 0, lengths[min(2, last)], 0)  # each of them is held
        short, long = lengths[min(settings.short, last)], lengths[min(settings.long, last)]
        return (short, 0, short, 0, long, 0, long, 0, short)
