"""The diagnosis of a failed step: a comparison with the distributions that known mistakes lead to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mmspec.certify.cases import CertifyCase
from mmspec.certify.enumeration import RuleBehaviour, enumerate_rule, joint_law, total_variation
from mmspec.certify.mutants import (
    AcceptsAll,
    AcceptsPossible,
    AgainstTarget,
    Greedy,
    Lenient,
    NoResidual,
    NotRenormalised,
    WrongRow,
)
from mmspec.core.round.rules import RecursiveRejection, Rule, TargetMatch, TokenWise


@dataclass(frozen=True, slots=True)
class KnownMistake:
    """A known mistake of accept steps."""

    name: str
    says: str  # a sentence
    make: Callable[[Rule], Rule]  # makes the mutant of a correct rule
    uncut: bool = False  # the mutant reads q before its cut to top-k

    def law(self, case: CertifyCase) -> Tensor:
        """Return the joint distribution, float64 [cases, V^(D + 1)]."""
        return joint_law(verified_case(case, self.make(right_rule(case)), self.uncut), case.near)


def verified_case(case: CertifyCase, rule: Rule, uncut: bool = False) -> RuleBehaviour:
    """Return a rule's behaviour on every draft of a case; with `uncut` it reads q before its cut to top-k."""
    return enumerate_rule(
        rule,
        case.shape.tree,
        case.near,
        case.q,
        drawn=case.shape.drawn,
        drafts=case.drafts,
        record=case.q_uncut if uncut else None,
    )


def right_rule(case: CertifyCase) -> Rule:
    """Return the exact top-down rule for such drafts."""
    if case.shape.drawn == "deterministic":
        return TargetMatch()
    if case.shape.tree.max_rank:
        return RecursiveRejection(case.shape.drawn == "with_replacement")
    return TokenWise()


_UNSCALED = "the token after a rejection is drawn from [p - q]+ without scaling it up to 1"
KNOWN_MISTAKES = (
    KnownMistake("always accepts", "every draft is accepted, as by uniforms that are always 0", AcceptsAll),
    KnownMistake(
        "always accepts",
        "every draft that has any probability is accepted, as by uniforms that are always 0",
        AcceptsPossible,
    ),
    KnownMistake(
        "residual not renormalised",
        f"{_UNSCALED}; the rest falls on the last value",
        lambda rule: NotRenormalised(rule, -1),
    ),
    KnownMistake(
        "residual not renormalised",
        f"{_UNSCALED}; the rest falls on the first value",
        lambda rule: NotRenormalised(rule, 0),
    ),
    KnownMistake(
        "q before its top-k cut",
        "drafts are verified with q as it was before the cut to top-k",
        lambda rule: rule,
        uncut=True,
    ),
    KnownMistake("no residual", "the token after a rejection is drawn from p instead of [p - q]+", NoResidual),
    KnownMistake(
        "p of the token before", "the target's law is read a token too early", lambda rule: WrongRow(rule, -1)
    ),
    KnownMistake("p of the token after", "the target's law is read a token too late", lambda rule: WrongRow(rule, 1)),
    KnownMistake("greedy", "the likeliest value is taken instead of a draw", Greedy),
    KnownMistake("siblings against p", "siblings are tested as if no earlier sibling had been rejected", AgainstTarget),
)


def mistakes_for(case: CertifyCase) -> list[KnownMistake]:
    is_picked, tree = case.shape.drawn == "deterministic", case.shape.tree
    return [
        mistake
        for mistake in KNOWN_MISTAKES
        if not (is_picked and (mistake.uncut or mistake.make is AgainstTarget))
        and (mistake.make is not AgainstTarget or tree.max_rank)
    ]


def lenient_mistake(cases: list[CertifyCase], accepted: list[float]) -> KnownMistake:
    """Return thresholds that are off by the factor that explains the acceptance in the first case."""
    low, high = 0.0, 64.0
    for _ in range(50):
        factor = (low + high) / 2
        behaviour = verified_case(cases[0], Lenient(right_rule(cases[0]), factor))
        share = float((behaviour.reach * behaviour.draft.tree.depth).sum() / (behaviour.case.max() + 1))
        low, high = (factor, high) if share < accepted[0] else (low, factor)
    return KnownMistake(
        f"lenient by {factor:.3g}",
        f"drafts are accepted with min(1, {factor:.3g} p / q)",
        lambda rule: Lenient(rule, factor),
    )


@dataclass(frozen=True, slots=True)
class NearestMistake:
    """The mistake whose distributions are nearest to those of the step."""

    suspect: KnownMistake
    apart: float  # total variation between them, in the worst case


def nearest_mistake(cases: list[CertifyCase], laws: list[Tensor], accepted: list[float]) -> NearestMistake:
    """Compare the distributions of a step, float64 [cases, V^(D + 1)] per case, with those of every mistake."""
    several = [*mistakes_for(cases[0]), lenient_mistake(cases, accepted)]
    distances = [
        NearestMistake(mistake, max(_distance(mistake.law(case), law) for case, law in zip(cases, laws, strict=True)))
        for mistake in several
    ]
    return min(distances, key=lambda nearest: nearest.apart)


def _distance(mine: Tensor, law: Tensor) -> float:
    return max(total_variation(a[None], b) for a, b in zip(mine, law, strict=True))
