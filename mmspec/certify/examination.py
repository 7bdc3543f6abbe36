"""Is an accept step exact? The whole examination of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmspec.certify.cases import Case, Shape, cases_of, chain_of
from mmspec.certify.certificate import TOLERANCE, CaseResult, Certificate
from mmspec.certify.gaussians import GaussianRule
from mmspec.certify.law import distance, impossible, law_of_answers
from mmspec.certify.manners import HIGH, Company, Manners, ask_beside, companies, manners_of
from mmspec.certify.regions import Uneven, regions
from mmspec.certify.samples import Sampled, sample
from mmspec.certify.step import Answer, Arrays, Step
from mmspec.certify.suspects import nearest, suspects_of

TREE = Shape((0, 0, 1, 1))
AT_ONCE = 1 << 15  # rows a call
ALONE = 2000  # rows that are asked one by one
BATCH = "a row changes with its batch"
STATE = "keeps rejected drafts in its state"
MEMORY = "remembers earlier calls"
_UNKNOWN = "its law is none of the known mistakes'"
_PASSED = {
    "regions": "the emitted values have the target's law",
    "samples": "nothing speaks against the target's law",
}
_SAYS = {
    BATCH: "what a row accepts or emits depends on the rows beside it",
    STATE: "a round that rejected drafts leaves them behind, and what follows is drawn as if they had been accepted",
    MEMORY: "the same question has another answer after another call",
}
Told = Callable[[CaseResult], None]


def certify(
    function: Callable, *, shapes: Sequence[Shape] | None = None, values: int = 3, laws: Sequence[str] | None = None,
    samples: int = 40_000, arrays: Arrays = "torch", name: str | None = None, told: Told | None = None,
) -> Certificate:  # fmt: skip
    """Examines an accept step; `mmspec certify` on the command line.

    function: any callable whose arguments are among `tokens`, `q`, `p`, `uniforms`, `parents`, `q_uncut` and `top_k` (see
        `Question`) and that returns (accepted, next token) or (accepted, next token, kept), int [R] each (see `Answer`).
    shapes: of the drafts; None for those in its attribute `shapes`, else a chain of two and, where it takes `parents`, a tree.
    values: of the vocabulary.   laws: which pairs of laws, None for all of `SAMPLED`.
    samples: a case, of a step that draws its own random numbers.   arrays: what it is given.   name: of the step.
    told: called with every case once it is done.

    A step that takes `uniforms` is certified without sampling: every draft is enumerated, and for each the cube of uniforms
    is cut into the boxes on which the answer is one and the same (see `regions`), so that the joint law of the first D + 1
    values is known to rounding. A step that does not, or that mixes its uniforms, is sampled: see `samples`, whose sizes and
    power the certificate states.
    Runs the step's code in this process, without a limit of time.
    Raises StepFailed, a ValueError, for a step that raises or answers something else, and ValueError for drafts it is not made
    for.
    """
    if isinstance(function, GaussianRule):
        return function.certificate(told)
    step = Step(function, arrays)
    shapes = tuple(shapes or getattr(function, "shapes", None) or _default(step))
    several = [case for shape in shapes for case in _cases(step, shape, values, laws)]
    name = name or getattr(function, "__name__", type(function).__name__)
    examination = _Examination(step, told or (lambda result: None), samples)
    return examination.certificate(name, several)


def _default(step: Step) -> tuple[Shape, ...]:
    return (chain_of(2), TREE) if "parents" in step.names else (chain_of(2),)


def _cases(step: Step, shape: Shape, values: int, laws: Sequence[str] | None) -> list[Case]:
    if values < 2:
        raise ValueError(f"values: expected at least 2, got {values}; ask for 3 or 4")
    if not shape.chain and "parents" not in step.names:
        raise ValueError(f"tree: expected a step with an argument `parents`, got one without for {shape.parents}; ask for a "
                         "chain, or let it take them")  # fmt: skip
    found = [case for case in cases_of(shape, values) if laws is None or case.kind in laws]
    if not found:
        raise ValueError(f"tree: expected no more siblings than values, got {shape.parents} over {values}, or known laws, got "
                         f"{laws}; ask for more values")  # fmt: skip
    return found


class _Examination:
    """One step's.   laws: of every case, float64 [cases, V^(D + 1)]."""

    def __init__(self, step: Step, told: Told, samples: int):
        self.step, self.told, self.samples = step, told, samples
        self.results: list[CaseResult] = []
        self.laws: list[Tensor] = []
        self.notes: list[str] = []
        self.stale = 0.0

    def certificate(self, name: str, several: list[Case]) -> Certificate:
        manners = Manners() if self.step.draws else manners_of(self.step, several[0])
        method = "samples" if self.step.draws or not manners.repeats else "regions"
        if not self.step.draws and not manners.repeats:
            self.notes.append("the same uniforms give other answers when asked again, so it was sampled")
        blame = None
        if method == "regions":
            try:
                blame = self._by_regions(several, manners)
            except Uneven as uneven:
                self.notes.append(f"{uneven}; so it was sampled")
                method, self.results, self.laws = "samples", [], []
        drawn: list[Sampled] = []
        if method == "samples":
            drawn, blame = self._by_samples(several)
        failed = blame is not None or not all(result.passed for result in self.results)
        like, says = self._named(several, drawn, blame) if failed else (None, _PASSED[method])
        worst = max(result.distance for result in self.results)
        return Certificate(name, method, not failed, worst, like, says, self.notes, self.results)

    def _by_regions(self, several: list[Case], manners: Manners) -> str | None:
        """Every case, in the worst of companies where the step looks at its company; returns what its manners are called."""
        first = several[0]
        for other in () if manners.memoryless else companies(first.shape, first.size):
            self._integrate(first, lambda rows, points, other=other: self._after(first, other, rows, points))
        for other, front in manners.moved_by:
            self._integrate(first, lambda rows, points, o=other, f=front: self._beside(first, o, f, rows, points))
        if not manners.memoryless:
            return STATE if manners.grudge else MEMORY
        if manners.moved_by:
            return BATCH
        for case in several:
            self._integrate(case, lambda rows, points, case=case: self._plain(case, rows, points))
        if all(result.passed for result in self.results):
            self._edges(several)
        return STATE if self.stale else None

    def _integrate(self, case: Case, ask: Callable[[Tensor, Tensor], Answer]) -> None:
        nodes, size = case.shape.tree.nodes, case.size
        found = regions(lambda rows, points: ask(rows, points).codes(nodes, size), len(case.drafts.value), nodes)
        law = law_of_answers(case, found.row, found.volume, Answer.of_codes(found.code, nodes, size))
        off = distance(case, law.law)
        self.stale = max(self.stale, law.stale)
        self.laws.append(law.law)
        self._keep(case, found.asked, len(found.row), law.accepted, off, off <= TOLERANCE)

    def _keep(
        self, case: Case, asked: int, boxes: int | None, accepted: float, off: float, passed: bool, **test
    ) -> None:
        result = CaseResult(case.kind, case.shape.parents, case.shape.drawn, case.size, len(case.drafts.value), asked, boxes,
                            accepted, off, passed, **test)  # fmt: skip
        self.results.append(result)
        self.told(result)

    def _plain(self, case: Case, rows: Tensor, points: Tensor) -> Answer:
        parts = [
            self.step(case.question.rows(r), u) for r, u in zip(rows.split(AT_ONCE), points.split(AT_ONCE), strict=True)
        ]
        return Answer(*(torch.cat([getattr(part, name) for part in parts]) for name in ("node", "value", "kept")))

    def _after(self, case: Case, other: Company, rows: Tensor, points: Tensor) -> Answer:
        """Every call behind one of the company."""
        fresh = self.step.fresh()
        fresh(other.question, other.uniforms)
        return fresh(case.question.rows(rows), points)

    def _beside(self, case: Case, other: Company, first: bool, rows: Tensor, points: Tensor) -> Answer:
        """Every row in a batch of two with the company."""
        parts = [ask_beside(self.step, other, case.question.rows(rows[i : i + 1]), points[i : i + 1], first)
                 for i in range(len(rows))]  # fmt: skip
        return Answer(*(torch.cat([getattr(part, name) for part in parts]) for name in ("node", "value", "kept")))

    def _edges(self, several: list[Case]) -> None:
        """Notes values of probability 0 that come out where uniforms are exactly 0, or as high as they get."""
        for case in several:
            rows = torch.arange(len(case.drafts.value))
            for uniform in (0.0, HIGH):
                points = torch.full((len(rows), case.shape.tree.nodes), uniform, dtype=torch.float64)
                if impossible(case, self._plain(case, rows, points)):
                    often = "once in 16 million draws of float32 uniforms"
                    self.notes.append(f"where uniforms are {uniform:.9g}, a value of probability 0 comes out ({often})")
                    return

    def _by_samples(self, several: list[Case]) -> tuple[list[Sampled], str | None]:
        drawn = [self._sampled(case, seed) for seed, case in enumerate(several)]
        if any(one.stale for one in drawn):
            return drawn, STATE
        if not all(result.passed for result in self.results):
            return drawn, None
        first, other = several[0], companies(several[0].shape, several[0].size)
        for seed, company in enumerate(other):
            for blame, how in ((MEMORY, {"before": company}), (BATCH, {"company": company})):
                one = self._sampled(first, 100 + seed, **how)
                if not self.results[-1].passed:
                    self.laws[-1] = one.law
                    return drawn, STATE if blame == MEMORY and company.name == "rejected" else blame
        return drawn, None

    def _sampled(self, case: Case, seed: int, **how: Company) -> Sampled:
        one = sample(self.step.fresh(), case, self.samples, 512, seed, **how)
        off = distance(case, one.law)
        self.laws.append(one.law)
        self._keep(case, self.samples, None, one.accepted, off, one.test.passed, statistic=one.test.statistic,
                   freedom=one.test.freedom, limit=one.test.limit, visible=one.visible)  # fmt: skip
        return one

    def _right_alone(self, several: list[Case], drawn: list[Sampled]) -> bool:
        """Whether rows that are asked one by one have the target's law, as far as what failed would have shown with so few."""
        worst = max(range(len(several)), key=lambda i: drawn[i].test.statistic / drawn[i].test.limit)
        seen = drawn[worst].test
        alone = sample(self.step.fresh(), several[worst], min(self.samples, ALONE), 1, 200)
        shows = (seen.statistic - seen.freedom) / self.samples > 4 * alone.visible**2  # see `visible_distance`
        return shows and alone.test.passed

    def _named(self, several: list[Case], drawn: list[Sampled], blame: str | None) -> tuple[str | None, str]:
        """What a step that failed is like: by its manners, else by the suspect that has its law."""
        if blame is not None:
            return blame, _SAYS[blame]
        if drawn:
            for one in suspects_of(several[0]):
                if all(found.fits(one.law(case)).passed for case, found in zip(several, drawn, strict=True)):
                    return one.name, one.says
            if self._right_alone(several, drawn):
                return BATCH, _SAYS[BATCH]
            return None, _UNKNOWN
        shape = several[max(range(len(several)), key=lambda i: self.results[i].distance)].shape
        mine = [i for i, case in enumerate(several) if case.shape == shape]
        found = nearest(
            [several[i] for i in mine], [self.laws[i] for i in mine], [self.results[i].accepted for i in mine]
        )
        worst = max(self.results[i].distance for i in mine)
        if found.apart <= max(10 * TOLERANCE, worst / 100):
            return found.suspect.name, found.suspect.says
        if found.apart > worst / 2:
            return None, _UNKNOWN
        return None, (f"{_UNKNOWN}; the nearest, at a distance of {found.apart:.3f}, is "
                      f"\"{found.suspect.name}\"")  # fmt: skip
