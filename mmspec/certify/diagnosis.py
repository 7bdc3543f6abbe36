"""What a step that fails is compared with: the laws that known mistakes lead to."""

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
from mmspec.core.rules import RecursiveRejection, Rule, TargetMatch, TokenWise


@dataclass(frozen=True, slots=True)
class KnownMistake:
    """name: a few words.   says: one sentence.   make: a rule around the right one.
    uncut: reads the law before its cut to top-k where q belongs."""

    name: str
    says: str
    make: Callable[[Rule], Rule]
    uncut: bool = False

    def law(self, case: CertifyCase) -> Tensor:
        """The joint law this mistake leads to, float64 [cases, V^(D + 1)]."""
        return joint_law(verified_case(case, self.make(right_rule(case)), self.uncut), case.near)


def verified_case(case: CertifyCase, rule: Rule, uncut: bool = False) -> RuleBehaviour:
    """What a rule makes of every draft of a case.   uncut: it reads the law before its cut to top-k for q."""
    return enumerate_rule(rule, case.shape.tree, case.near, case.q, drawn=case.shape.drawn, drafts=case.drafts,
                     record=case.q_uncut if uncut else None)  # fmt: skip


def right_rule(case: CertifyCase) -> Rule:
    """The exact top-down rule of such drafts."""
    if case.shape.drawn == "deterministic":
        return TargetMatch()
    if case.shape.tree.max_rank:
        return RecursiveRejection(case.shape.drawn == "with_replacement")
    return TokenWise()


_UNSCALED = "what follows a rejection is drawn from [p - q]+ without scaling it up to 1"
KNOWN_MISTAKES = (
    KnownMistake("always accepts", "every draft is accepted, as by uniforms that are always 0", AcceptsAll),
    KnownMistake("always accepts", "every draft that has any probability is accepted, as by uniforms that are always 0",
            AcceptsPossible),
    KnownMistake("residual not renormalised", f"{_UNSCALED}; the rest falls on the last value",
            lambda rule: NotRenormalised(rule, -1)),
    KnownMistake("residual not renormalised", f"{_UNSCALED}; the rest falls on the first value",
            lambda rule: NotRenormalised(rule, 0)),
    KnownMistake("q before its top-k cut", "drafts are verified with q as it was before the cut to top-k",
            lambda rule: rule, uncut=True),
    KnownMistake("no residual", "what follows a rejection is drawn from p instead of [p - q]+", NoResidual),
    KnownMistake("p of the token before", "the target's law is read a token too early", lambda rule: WrongRow(rule, -1)),
    KnownMistake("p of the token after", "the target's law is read a token too late", lambda rule: WrongRow(rule, 1)),
    KnownMistake("greedy", "the likeliest value is taken where one should be drawn", Greedy),
    KnownMistake("siblings against p", "siblings are tested as if no earlier one had been rejected", AgainstTarget),
)  # fmt: skip


def mistakes_for(case: CertifyCase) -> list[KnownMistake]:
    """Those that make sense for a case."""
    given, tree = case.shape.drawn == "deterministic", case.shape.tree
    return [one for one in KNOWN_MISTAKES
            if not (given and (one.uncut or one.make is AgainstTarget))
            and (one.make is not AgainstTarget or tree.max_rank)]  # fmt: skip


def lenient_mistake(cases: list[CertifyCase], accepted: list[float]) -> KnownMistake:
    """Thresholds too high or low by the factor that explains how many drafts of the first case are accepted."""
    low, high = 0.0, 64.0
    for _ in range(50):
        factor = (low + high) / 2
        found = verified_case(cases[0], Lenient(right_rule(cases[0]), factor))
        share = float((found.reach * found.draft.tree.depth).sum() / (found.case.max() + 1))
        low, high = (factor, high) if share < accepted[0] else (low, factor)
    return KnownMistake(f"lenient by {factor:.3g}", f"drafts are accepted with min(1, {factor:.3g} p / q)",
                   lambda rule: Lenient(rule, factor))  # fmt: skip


@dataclass(frozen=True, slots=True)
class NearestMistake:
    """The suspect whose laws are nearest to those of the step.   apart: how far they are, the worst case's total variation."""

    suspect: KnownMistake
    apart: float


def nearest_mistake(cases: list[CertifyCase], laws: list[Tensor], accepted: list[float]) -> NearestMistake:
    """Compares the laws of a step float64 [cases, V^(D + 1)], one of each case, with those of every suspect."""
    several = [*mistakes_for(cases[0]), lenient_mistake(cases, accepted)]
    found = [
        NearestMistake(one, max(_distance(one.law(case), law) for case, law in zip(cases, laws, strict=True)))
        for one in several
    ]
    return min(found, key=lambda one: one.apart)


def _distance(mine: Tensor, law: Tensor) -> float:
    return max(total_variation(a[None], b) for a, b in zip(mine, law, strict=True))
