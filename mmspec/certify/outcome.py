"""What the cases of one step came to, before it has a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from mmspec.certify.cases import Case
from mmspec.certify.certificate import CaseResult
from mmspec.certify.samples import Sampled

Told = Callable[[CaseResult], None]
BATCH = "a row changes with its batch"
STATE = "keeps rejected drafts in its state"
MEMORY = "remembers earlier calls"


@dataclass(slots=True)
class Outcome:
    """told: hears of every case.   blame: what is wrong with the step's manners, None for nothing.
    laws: per case float64 [cases, V^(D + 1)].   drawn: per case, of a step that was sampled.
    """

    told: Told
    blame: str | None = None
    results: list[CaseResult] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    drawn: list[Sampled] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.blame is None and all(result.passed for result in self.results)

    @property
    def worst(self) -> float:
        return max(result.distance for result in self.results)

    def keep(self, case: Case, law: Tensor, **figures: object) -> None:
        """Takes a case in.   figures: the fields of its `CaseResult` that it does not know itself."""
        shape = case.shape
        self.laws.append(law)
        self.results.append(
            CaseResult(case.kind, shape.parents, shape.drawn, case.size, len(case.drafts.value), **figures)
        )
        self.told(self.results[-1])
