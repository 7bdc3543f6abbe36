from __future__ import annotations

from mmspec.core.round.draft import Draft, Evidence
from mmspec.core.round.rules.base import Rule
from mmspec.core.round.rules.gaussian import GaussianBlock, Reflection
from mmspec.core.round.rules.rejection import BlockVerification, RecursiveRejection, TokenWise, Traversal
from mmspec.core.round.rules.target_match import TargetMatch
from mmspec.methods import Domain, method, names, parse
from mmspec.methods.registry import DOMAINS, ModelParts


@method(
    "exact",
    domain=DOMAINS,
    kind="rule",
    title="exact",
    exact=True,
    about="the exact rule that accepts most of each draft",
    order=0,
)
class BestExact(Rule):
    """Applies the exact rule that accepts most of each draft.

    Drafted tokens: block verification on chains, traversal on trees drawn without replacement, recursive rejection on
    trees drawn with replacement, and target-match for greedy requests and drafts without a distribution. Gaussians:
    reflection for a single value, block verification for several. A chain with a copied path beside it counts as a
    tree. Drafts that are reused after a rejection are tested node by node: token-wise or by reflection on chains, by
    recursive rejection on trees.
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


def resolve(rule: str | Rule, *, greedy: bool, domain: Domain | None = None, model: object = None) -> Rule:
    """Return the rule of a text; a Rule is returned as it is.

    In a greedy request the target's distributions are one-hot, so every exact rule over tokens accepts the same as
    target-match, which is returned instead.

    Args:
        rule: A name with settings, such as "lantern:delta=0.2,k=100", or a rule.
        greedy: Whether the target takes its likeliest values.
        domain: The domain of the name, None for all domains.
        model: The target, whose codebook some rules read; None where there is none.

    Raises:
        ValueError: The name, a setting or a value is unknown.
    """
    if isinstance(rule, str):
        rule = parse(rule, domain, "rule").make(ModelParts(model))
    if not isinstance(rule, Rule):
        raise ValueError(
            f"rule: expected one of {', '.join(names(domain, 'rule'))} or a Rule, got {type(rule).__name__}"
        )
    over_tokens = any(kind != "gaussian" for kind, _ in rule.proven_for)
    return TargetMatch() if greedy and rule.exact and over_tokens else rule
