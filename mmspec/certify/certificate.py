"""What a certificate says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

TOLERANCE = 1e-6  # total variation; a step that computes in float32 is off by less


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One pair of laws. drafts: how many there are.   asked: rows the step was asked.   regions: boxes of uniforms with one
    answer, None where it was sampled.   distance: total variation of the joint law from the target's; of samples, as drawn.
    limit: above it the case has failed.   statistic, freedom: of the chi-square test, None where there is none.
    visible: the distance that the test shows with a chance of 99 %, None where nothing is left to chance.
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


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether an accept step keeps the target's law.

    step: its name.   method: "regions" (all drafts and all uniforms, nothing sampled) or "samples".
    exact: it passed every case and its answers depend on nothing but their row; of samples: nothing spoke against it.
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

    def sizes(self) -> str:
        """How much was tried, and what that can miss."""
        drafts, asked = sum(c.drafts for c in self.cases), sum(c.asked for c in self.cases)
        values, longest = max(c.values for c in self.cases), max(len(c.parents) for c in self.cases)
        tried = (f"{len(self.cases)} pairs of laws over {values} values, drafts of up to {longest} tokens, {drafts} of them, "
                 f"{asked} rows asked")  # fmt: skip
        if self.method == "regions":
            boxes = sum(c.regions or 0 for c in self.cases)
            return f"{tried}; {boxes} regions of uniforms, nothing sampled; passes within {TOLERANCE:g}"
        seen = max(c.visible or 0.0 for c in self.cases)
        return (f"{tried}; chi-square tests, each of which fails an exact step less than once in five thousand runs, and one "
                f"that is off by a total variation of {seen:.3f} 99 times in a hundred")  # fmt: skip
