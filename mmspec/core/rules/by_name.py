"""Rules by name, and the rule that picks the best exact one for each draft."""

from __future__ import annotations

from collections.abc import Callable

from mmspec.core.draft import Draft, Evidence
from mmspec.core.rules.base import Rule
from mmspec.core.rules.gaussian import GaussianBlock, Reflection
from mmspec.core.rules.rejection import BlockVerification, KSeq, RecursiveRejection, TokenWise, Traversal
from mmspec.core.rules.target_match import TargetMatch


class BestExact(Rule):
    """Chooses per draft: block verification on chains, traversal on trees drawn without replacement, recursive rejection on
    trees drawn with replacement, for Gaussians block verification too and reflection where one value was drafted, and
    target-match for greedy requests and drafts without a law. A chain with a copied path beside it counts as a tree. Drafts
    that live on after a rejection are judged node by node: token-wise or by reflection on chains, by recursive rejection on
    trees.
    """

    name = "exact"
    exact = True
    proven_for = TargetMatch.proven_for | BlockVerification.proven_for | Traversal.proven_for | Reflection.proven_for

    def __init__(self) -> None:
        self.match, self.block, self.traversal = TargetMatch(), BlockVerification(), Traversal()
        self.reflection, self.gaussian_block = Reflection(), GaussianBlock()
        self.replacement = RecursiveRejection(replacement=True)
        self.token, self.recursive = TokenWise(), RecursiveRejection()

    def rule_for(self, draft: Draft, evidence: Evidence) -> Rule:
        if draft.law.kind == "gaussian" or evidence.scores is None:
            return self.reflection if draft.tree.nodes < 3 or draft.law.reused else self.gaussian_block
        if evidence.greedy or draft.law.kind != "categorical" or draft.law.drawn in ("deterministic", "none"):
            return self.match
        if not draft.tree.max_rank and draft.law.copies is None:
            return self.token if draft.law.reused else self.block
        if draft.law.reused and draft.law.drawn == "without_replacement":
            return self.recursive
        return self.traversal if draft.law.drawn == "without_replacement" else self.replacement


_RULES: dict[str, Callable[[], Rule]] = {
    "exact": BestExact,
    "token": TokenWise,
    "block": BlockVerification,
    "traversal": Traversal,
    "match": TargetMatch,
    "recursive": RecursiveRejection,
    "recursive_replacement": lambda: RecursiveRejection(replacement=True),
    "kseq": KSeq,
    "reflection": Reflection,
    "gaussian_block": GaussianBlock,
}


def rule_names() -> tuple[str, ...]:
    """The names `resolve` takes."""
    return tuple(_RULES)


def resolve(rule: str | Rule, *, greedy: bool) -> Rule:
    """The rule of that name; a Rule is taken as it is. Raises ValueError for an unknown name.

    Where the request is greedy the target's laws are one-hot and every exact rule over tokens accepts what target-match
    accepts, so target-match is returned in their place.
    """
    if isinstance(rule, str):
        if rule not in _RULES:
            raise ValueError(f"rule: expected one of {', '.join(_RULES)} or a Rule, got {rule!r}")
        rule = _RULES[rule]()
    if not isinstance(rule, Rule):
        raise ValueError(f"rule: expected one of {', '.join(_RULES)} or a Rule, got {type(rule).__name__}")
    over_tokens = any(kind != "gaussian" for kind, _ in rule.proven_for)
    return TargetMatch() if greedy and rule.exact and over_tokens else rule
