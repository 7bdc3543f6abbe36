"""The complete examination of an accept step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mmspec.certify.cases import CertifyCase, Shape, cases_of, chain_of
from mmspec.certify.certificate import TOLERANCE, Certificate
from mmspec.certify.diagnosis import mistakes_for, nearest_mistake
from mmspec.certify.independence import independence_of
from mmspec.certify.probes import FEWEST, PROBES, SECONDS, ProbeBudget
from mmspec.certify.regions import UnresolvedRegions
from mmspec.certify.rules import OFFSETS, GaussianRule
from mmspec.certify.runners import (
    BATCH,
    MEMORY,
    STATE,
    CaseCallback,
    Outcome,
    passes_alone,
    run_by_regions,
    run_by_samples,
)
from mmspec.certify.step import AcceptStep, Arrays

TREE = Shape((0, 0, 1, 1))
_UNKNOWN = "its law is not that of any known mistake"
_PASSED = {
    "regions": "the emitted values have the target's law",
    "samples": "nothing speaks against the target's law",
}
_SAYS = {
    BATCH: "the tokens that a row accepts or emits depend on the rows beside it",
    STATE: "rejected drafts stay in its state, and the next tokens are drawn as if they had been accepted",
    MEMORY: "its answer to the same input depends on earlier calls",
}


def certify(
    function: Callable,
    *,
    shapes: Sequence[Shape] | None = None,
    values: int = 3,
    laws: Sequence[str] | None = None,
    samples: int = 40_000,
    probes: int = PROBES,
    seconds: float = SECONDS,
    arrays: Arrays = "torch",
    name: str | None = None,
    on_case: CaseCallback | None = None,
    on_start: Callable[[int], None] = lambda cases: None,
) -> Certificate:
    """Examine an accept step; `mmspec certify` on the command line.

    A step that takes `uniforms` is certified by regions. Every draft is enumerated, and for each the cube of uniforms
    is cut into boxes with a constant answer (see `RegionMap`). The joint distribution of the first D + 1 values is then
    known up to rounding. Independent probes of the whole cube look for islands that the cuts missed, and the
    certificate states how large a missed island could be. A step that has no `uniforms`, or mixes them, is sampled
    instead (see `samples`), and the certificate states the sample sizes and the power.

    The step's code runs in this process, without a time limit.

    Args:
        function: Any callable whose arguments are among `tokens`, `q`, `p`, `uniforms`, `parents`, `q_uncut` and
            `top_k` (see `StepQuestion`). It returns (accepted, next token) or (accepted, next token, kept), int [R]
            each (see `StepAnswer`).
        shapes: The shapes of the drafts; None for those in its attribute `shapes`, else a chain of two and, if it takes
            `parents`, a tree.
        values: The size of the vocabulary.
        laws: The pairs of distributions, None for all of `SAMPLED_KINDS`.
        samples: The rounds of a case, for a step that draws its own random numbers.
        probes: The random uniforms of each draft at which a step that takes `uniforms` is probed for islands.
        seconds: The time for the probes of a case. A slower step gets fewer probes, but at least 100 per draft.
        arrays: The kind of arrays that the step receives.
        name: The step's name in the certificate.
        on_case: Called with every finished case.
        on_start: Called with the number of cases before the first; again where a step has to be sampled after all.

    Raises:
        StepFailed: A ValueError, for a step that raises or returns something else.
        ValueError: The step does not support such drafts, or an argument is out of range.
    """
    if probes < FEWEST:
        raise ValueError(f"probes: expected at least {FEWEST}, got {probes}; ask for 1000 or more")
    if isinstance(function, GaussianRule):
        on_start(len(OFFSETS))
        return function.certificate(on_case)
    step = AcceptStep(function, arrays)
    shapes = tuple(shapes or getattr(function, "shapes", None) or _default(step))
    several = [case for shape in shapes for case in _cases(step, shape, values, laws)]
    name = name or getattr(function, "__name__", type(function).__name__)
    on_start(len(several))
    restart = partial(on_start, len(several))
    out = _outcome(step, several, samples, ProbeBudget(probes, seconds), on_case or (lambda result: None), restart)
    method = "samples" if out.drawn else "regions"
    like, says = (None, _PASSED[method]) if out.passed else _diagnose(step, several, out)
    certificate = Certificate(name, method, out.passed, out.worst, like, says, out.notes, out.results)
    return replace(certificate, says=f"{says}; {certificate.bound()}") if certificate.bound() else certificate


def _default(step: AcceptStep) -> tuple[Shape, ...]:
    return (chain_of(2), TREE) if "parents" in step.names else (chain_of(2),)


def _cases(step: AcceptStep, shape: Shape, values: int, laws: Sequence[str] | None) -> list[CertifyCase]:
    if values < 2:
        raise ValueError(f"values: expected at least 2, got {values}; ask for 3 or 4")
    if not shape.chain and "parents" not in step.names:
        raise ValueError(
            f"tree: expected a step with an argument `parents` for {shape.parents}, got a step without; test it "
            "on a chain, or add the argument"
        )
    known = (laws,) if isinstance(laws, str) else laws
    cases = [case for case in cases_of(shape, values) if known is None or case.kind in known]
    if not cases:
        raise ValueError(
            f"tree: expected no more siblings than values, got {shape.parents} over {values}, or known laws, got "
            f"{laws}; use more values"
        )
    return cases


def _outcome(
    step: AcceptStep,
    several: list[CertifyCase],
    samples: int,
    effort: ProbeBudget,
    on_case: CaseCallback,
    restart: Callable[[], None],
) -> Outcome:
    if step.draws:
        return run_by_samples(step, several, samples, on_case)
    dependences, note = independence_of(step, several[0]), "the same uniforms give other answers in a second call"
    if dependences.repeats:
        try:
            return run_by_regions(step, several, dependences, effort, on_case)
        except UnresolvedRegions as uneven:
            note = str(uneven)
            restart()
    out = run_by_samples(step, several, samples, on_case)
    out.notes.append(f"{note}; so it was sampled")
    return out


def _diagnose(step: AcceptStep, several: list[CertifyCase], out: Outcome) -> tuple[str | None, str]:
    """Return the likeness of a failed step: its dependences, or the mistake with the same distribution."""
    if out.blame is not None:
        return out.blame, _SAYS[out.blame]
    if out.drawn:
        for mistake in mistakes_for(several[0]):
            if all(law.fits(mistake.law(case)).passed for case, law in zip(several, out.drawn, strict=True)):
                return mistake.name, mistake.says
        return (BATCH, _SAYS[BATCH]) if passes_alone(step, several, out.drawn) else (None, _UNKNOWN)
    examined = range(len(out.results))
    shape = several[max(examined, key=lambda i: out.results[i].distance)].shape
    mine = [i for i in examined if several[i].shape == shape]
    nearest = nearest_mistake(
        [several[i] for i in mine], [out.laws[i] for i in mine], [out.results[i].accepted for i in mine]
    )
    worst = max(out.results[i].distance for i in mine)
    if nearest.apart <= max(10 * TOLERANCE, worst / 100):
        return nearest.suspect.name, nearest.suspect.says
    if nearest.apart > worst / 2:
        return None, _UNKNOWN
    return None, f'{_UNKNOWN}; the nearest, at a distance of {nearest.apart:.3f}, is "{nearest.suspect.name}"'
