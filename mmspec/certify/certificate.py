"""What a certificate says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

TOLERANCE = 1e-6  # total variation; a step that computes in float32 is off by less
POWER = 0.99  # how likely a test is to see what a certificate says that it would have seen
CONFIDENCE = "99 times in a hundred"  # POWER in words


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One pair of laws. drafts: how many there are.   asked: rows the step was asked.   regions: boxes of uniforms with one
    answer, None where it was sampled.   distance: total variation of the joint law from the target's; of samples, as drawn.
    limit: above it the case has failed.   statistic, freedom: of the chi-square test, None where there is none.
    visible: the distance that the test shows with a chance of 99 %, None where there is no test.
    probes: independent uniform points at which every draft was compared with its regions; 0 where it was not.
    island: a part of a draft's uniforms of more than this volume with another answer than its region's would have been seen
    by the probes with a chance of 99 %; None without probes.
    """

    laws: str
    parents: tuple[int, ...]
    drawn: str
    values: int
    drafts: int
    asked: int
    regions: int | None
    accepted: float
    distance: float
    passed: bool
    statistic: float | None = None
    freedom: int | None = None
    limit: float = TOLERANCE
    visible: float | None = None
    probes: int = 0
    island: float | None = None


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether an accept step keeps the target's law.

    step: its name.   method: "regions" (all drafts, and regions of uniforms that are probed for islands) or "samples".
    exact: it passed every case and its answers depend on nothing but their row, up to islands that the probes could miss (see
    `island`); of samples: nothing spoke against it.
    distance: the largest total variation of a joint law from the target's; of samples as they were drawn, noise included.
    behaves_like: the known mistake it shares the law of, None where it passed or shares none.   says: that in a sentence.
    notes: what else was seen.   cases: see `CaseResult`.
    """

    step: str
    method: str
    exact: bool
    distance: float
    behaves_like: str | None
    says: str
    notes: list[str] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)

    def to_dict(self) -> dict:
        """For JSON."""
        return asdict(self)

    @property
    def island(self) -> float | None:
        """The largest `CaseResult.island`; None where a case was not probed, as of steps that fail or that are sampled."""
        islands = [case.island for case in self.cases]
        return None if None in islands else max(islands)

    def bound(self) -> str:
        """The islands that the probes can have missed, as a clause; empty where there is no bound."""
        return (
            "" if self.island is None else f"islands of more than {self.island:.2g} would have been seen {CONFIDENCE}"
        )

    def sizes(self) -> str:
        """How much was tried, and what that can miss."""
        drafts, asked = sum(c.drafts for c in self.cases), sum(c.asked for c in self.cases)
        values, longest = max(c.values for c in self.cases), max(len(c.parents) for c in self.cases)
        tried = (f"{len(self.cases)} pairs of laws over {values} values, drafts of up to {longest} tokens, {drafts} of them, "
                 f"{asked} rows asked")  # fmt: skip
        if self.method == "regions":
            boxes = sum(c.regions or 0 for c in self.cases)
            probes = min(case.probes for case in self.cases)
            probed = f"{probes} random probes of each draft: {self.bound()}; " if probes else ""
            return f"{tried}; {boxes} regions of uniforms; {probed}passes within {TOLERANCE:g}"
        seen = max(c.visible or 0.0 for c in self.cases)
        return (f"{tried}; chi-square tests, each of which fails an exact step less than once in five thousand runs, and one "
                f"that is off by a total variation of {seen:.3f} {CONFIDENCE}")  # fmt: skip
