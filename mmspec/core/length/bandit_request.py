from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BanditSettings:
    """Constants of a `DraftLengthBandit`. Gains are ratios to plain rounds."""

    plain_rounds: int = 3  # rounds without a draft before anything is drafted
    short: int = 1  # indices of the lengths that are tried first
    long: int = 5
    hold: int = 2  # rounds a window stays longer than it takes to settle
    worth: int = 4  # values that must remain for a first look at the drafter, or for a probe
    hopeful: int = 24  # drafts over which the optimism about rarely tried lengths fades
    credit: int = 500  # plain rounds that count as spent from the start
    enter: float = 0.04  # the gain at which drafting starts
    leave: float = 0.01  # the gain below which drafting ends
    probe: int = 2  # rounds of a probe, after those in which a window settles
    cold: int = 2  # first rounds of a request, which are slower than later rounds
    late: int = 32  # values left when rows at one position are probed
    first_wait: int = 16  # rounds between two probes of a drafter that is not faster, doubled each time
    last_wait: int = 256
    excursion: int = 16  # rounds between two excursions
    stale: int = 32  # age in rounds at which a length is measured again
    stale_plain: int = 96  # the same for plain rounds; it is `excursion` where the gain is below `clear`
    clear: float = 1.25
    soon: int = 6  # rounds between two excursions while a gain below `narrow` rests on fewer than `sure` comparisons
    narrow: float = 1.5
    sure: int = 16


@dataclass(slots=True)
class BanditRequest:
    """The state of one request in the decisions of a `DraftLengthBandit`. With `together` its rows stay at one position
    as long as nothing is drafted, where plain rounds are cheapest; probes then wait until the end is near. `emitted`
    has a single number: the values of the longest row if this round adds one value and ends it."""

    deepest: int | None  # the longest draft; None for a fixed shape, which counts as length 1
    prompt: int = 1  # 1 where unknown
    lengths: tuple[int, ...] = ()  # the lengths worth distinguishing, ascending; empty for all up to `deepest`
    settling: int = 0  # rounds after a change of length until drafts have their usual acceptance
    whole: bool = False  # the request will emit all of the values in `left`
    together: bool = False
    begun: int = 0  # rounds so far
    fresh: bool = True  # the drafter has not drafted yet, so it has not read the prompt
    skipped: int = 0  # rounds since the last draft
    probe_rounds: int = 0  # remaining rounds of a probe
    probe_gain: float = 0.0  # the time that the probe has gained so far
    hold_rounds: int = 0  # rounds for which the length stays fixed
    last: int = 0  # the length of the last round
    same: int = 0  # how many rounds in a row had the length `last`
    emitted: list[int] = field(default_factory=lambda: [0])
    left: int | None = None  # the most values that the request can still emit; None where unknown
    shift: float = 0.0  # the correction of the acceptance by the features of the last draft, in log-odds

    def __post_init__(self) -> None:
        self.lengths = self.lengths or tuple(range(1, self.levels + 1))

    @property
    def levels(self) -> int:
        return self.deepest or 1

    def within(self, length: int) -> int:
        if self.deepest is None or self.left is None or self.settling:
            return length
        return min(length, self.left - 1)

    def cut(self, length: int) -> bool:
        """Return whether the end of the request cut a window short, so that its outcome says nothing about its length."""
        return self.settling > 0 and self.left is not None and length >= self.left

    def opening(self, settings: BanditSettings) -> tuple[int, ...]:
        """Return the lengths of the first rounds, with plain rounds in between so that both meet the same machine load."""
        lengths, last = self.lengths, len(self.lengths) - 1
        if self.settling:
            return (lengths[min(1, last)], 0, lengths[min(2, last)], 0)  # each is held for several rounds
        short, long = lengths[min(settings.short, last)], lengths[min(settings.long, last)]
        return (short, 0, short, 0, long, 0, long, 0, short)
