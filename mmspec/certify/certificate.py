from __future__ import annotations

from dataclasses import asdict, dataclass, field

TOLERANCE = 1e-6  # total variation; a step that computes in float32 is off by less
POWER = 0.99  # the chance that a test detects a deviation of the size that the certificate states
CONFIDENCE = "99 times in a hundred"  # POWER in words


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case."""

    laws: str  # the kind of the pair of distributions
    parents: tuple[int, ...]
    drawn: str
    values: int  # size of the vocabulary
    drafts: int
    asked: int  # rows that the step was called with
    regions: int | None  # boxes of uniforms with a constant answer, None for a sampled step
    accepted: float  # mean number of accepted drafted tokens
    distance: float  # total variation of the joint distribution from the target's; of samples, with their noise
    passed: bool
    statistic: float | None = None  # of the chi-square test; None without a test
    freedom: int | None = None
    limit: float = TOLERANCE
    visible: float | None = None  # distance that the test detects with a chance of 99 %; None without a test
    probes: int = 0  # independent uniform points at which every draft was compared with its regions
    island: float | None = None  # deviating volume of a draft's uniforms that they detect with 99 %; None without


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of `certify`: whether an accept step keeps the target's distribution.

    Attributes:
        step: The name of the step.
        method: "regions" (all drafts, and regions of uniforms that are probed for islands) or "samples".
        exact: It passed every case and its answers depend on their row alone, up to islands that the probes could miss
            (see `island`); of samples, no test failed.
        distance: The largest total variation of a joint distribution from the target's; of samples, with their noise.
        behaves_like: The known mistake with the same distribution, None if there is none.
        says: The verdict as a sentence.
        notes: Further observations.
        cases: The results of the cases.
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
        """Return all fields, for JSON."""
        return asdict(self)

    @property
    def island(self) -> float | None:
        """The largest `CaseResult.island`; None where a case was not probed, as for steps that fail or are sampled."""
        islands = [case.island for case in self.cases]
        return None if None in islands else max(islands)

    def bound(self) -> str:
        """Return a clause on the islands that the probes may have missed; empty without a bound."""
        return (
            "" if self.island is None else f"islands of more than {self.island:.2g} would have been seen {CONFIDENCE}"
        )

    def sizes(self) -> str:
        """Describe how much was tested, and the deviations that this can miss."""
        drafts, rows = sum(c.drafts for c in self.cases), sum(c.asked for c in self.cases)
        values, longest = max(c.values for c in self.cases), max(len(c.parents) for c in self.cases)
        tried = (
            f"{len(self.cases)} pairs of laws over {values} values, {drafts} drafts of up to {longest} tokens, "
            f"{rows} rows"
        )
        if self.method == "regions":
            boxes = sum(c.regions or 0 for c in self.cases)
            probes = min(case.probes for case in self.cases)
            probed = f"{probes} random probes of each draft: {self.bound()}; " if probes else ""
            return f"{tried}; {boxes} regions of uniforms; {probed}passes within {TOLERANCE:g}"
        seen = max(c.visible or 0.0 for c in self.cases)
        return (
            f"{tried}; chi-square tests, each of which fails an exact step less than once in five thousand runs, and a "
            f"step that is off by a total variation of {seen:.3f} {CONFIDENCE}"
        )
