"""The inputs of a bandit over draft lengths: its constants, and the state of a single request."""

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
    """The state of one request in the decisions of a `DraftLengthBandit`.

    Attributes:
        deepest: The longest draft that can be requested; None for a fixed shape, which counts as length 1.
        prompt: The length of the prompt, 1 where unknown.
        lengths: The lengths worth distinguishing, ascending; empty for all up to `deepest`.
        settling: Rounds after a change of length until drafts have their usual acceptance.
        whole: The request will emit all of the values in `left`.
        together: Its rows stay at one position as long as nothing is drafted, where plain rounds are cheapest. Probes
            then wait until the end is near, so that few rounds are slower.
        begun: Rounds so far.
        fresh: The drafter has not drafted yet, so it has not read the prompt.
        skipped: Rounds since the last draft.
        probe_rounds: Remaining rounds of a probe.
        probe_gain: The time that the probe has gained so far.
        hold_rounds: Rounds for which the length stays fixed.
        last: The length of the last round.
        same: How many rounds in a row had the length `last`.
        emitted: A list with a single number: the values of the longest row if this round adds one value and ends it.
        left: The most values that the request can still emit; None where unknown.
        shift: The correction of the acceptance by the features of the last draft, in log-odds.
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
    shift: float = 0.0

    def __post_init__(self) -> None:
        self.lengths = self.lengths or tuple(range(1, self.levels + 1))

    @property
    def levels(self) -> int:
        """The number of lengths above 0 in a table of costs."""
        return self.deepest or 1

    def within(self, length: int) -> int:
        """Return `length`, cut to the room that the request has left; windows end with the request by themselves."""
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
