"""The rules of this package as accept steps, by name: `mmspec certify mmspec.certify.rules:block`.

Exact ones pass, relaxed ones fail with their distance. Relaxed rules have settings of a tiny vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.certify.cases import Shape, chain_of
from mmspec.certify.gaussians import GaussianRule
from mmspec.core.draft import Draft, Drawn, Law
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.rules import Rule
from mmspec.core.rules.resolve import names as exact_names
from mmspec.core.rules.resolve import resolve
from mmspec.core.rules.typical import TypicalAcceptance
from mmspec.core.tree import static_tree

BRANCHES = (0, 0, 1, 1)


class RuleStep:
    """A rule, with uniforms for its tests and its residual. shapes: of the drafts it is proven for."""

    def __init__(self, rule: Rule, drawn: Drawn = "without_replacement"):
        self.rule, self.drawn, self.__name__ = rule, drawn, f"rule {rule.name}"
        self.shapes = (chain_of(2) if drawn == "without_replacement" else Shape((0, 1), drawn),)
        if not rule.chains_only:
            self.shapes += (Shape(BRANCHES, drawn),)

    def __call__(
        self, tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor, parents: Tensor
    ) -> tuple[Tensor, Tensor]:
        tree = static_tree((0, *parents.tolist()))
        root = torch.zeros(len(tokens), 1)
        draft = Draft(torch.cat((root.long(), tokens), 1), tree, self._law(q, tree.parent[0].tolist()))
        evidence = Evidence(p.log())
        rule = self.rule.on(draft, evidence)
        rule.check(draft)
        weights = rule.weigh(evidence, draft)
        verdict = rule.select(weights, torch.cat((root, uniforms[:, :-1]), 1), draft)
        verdict = rule.resample(evidence, draft, weights, verdict, _Given(uniforms[:, -1]))
        return verdict.node, verdict.correction

    def _law(self, q: Tensor, parent: list[int]) -> Law:
        if self.drawn == "deterministic":
            return Law(self.drawn)
        row, first = torch.full((len(parent),), -1), []
        for node in range(1, len(parent)):
            if row[parent[node]] < 0:
                row[parent[node]] = len(first)
                first.append(node - 1)
        return Law(self.drawn, row, q[:, first].log())


class _Given(Keys):
    """Keys whose numbers are one column of uniforms, float64 [B]."""

    def __init__(self, column: Tensor):
        Keys.__init__(self, torch.zeros(len(column), dtype=torch.long))
        self.column = column

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        return self.column[:, None].expand(-1, *shape)


def _neighbours() -> Tensor:
    return torch.tensor([[1, 2], [0, 2], [1, 0]])


def _lantern() -> Rule:
    from mmspec.imagegen.rules.lantern import Lantern

    return Lantern(_neighbours(), k=2, delta=0.4)


def _lantern_plus() -> Rule:
    from mmspec.imagegen.rules.lantern import LanternPlus

    return LanternPlus(_neighbours(), k=2)


def _gsd() -> Rule:
    from mmspec.imagegen.rules.gsd import GSD

    return GSD(group=3)


def _coolsd() -> Rule:
    from mmspec.imagegen.rules.cool import CoolSD

    return CoolSD(delta=1.5)


def _runjoint() -> Rule:
    from mmspec.imagegen.rules.run_joint import RunJoint

    return RunJoint()


RELAXED: dict[str, Callable[[], Rule]] = {
    "coolsd": _coolsd,
    "gsd": _gsd,
    "lantern": _lantern,
    "lantern_plus": _lantern_plus,
    "runjoint": _runjoint,
    "typical": TypicalAcceptance,
}
GAUSSIAN = ("reflection", "gaussian_block")


def ways(rule: Rule) -> tuple[Drawn, ...]:
    """How drafts can be drawn that the rule is proven for, the plainest first."""
    drawn = {way for _, way in rule.proven_for}
    return tuple(way for way in ("without_replacement", "with_replacement", "deterministic") if way in drawn)


def step_of(name: str, drawn: Drawn | None = None) -> RuleStep | GaussianRule:
    """The rule of that name.   drawn: how its drafts were; None for the first way it is proven for."""
    if name in GAUSSIAN:
        return GaussianRule(resolve(name, greedy=False))
    rule = RELAXED[name]() if name in RELAXED else resolve(name, greedy=False)
    return RuleStep(rule, drawn or ways(rule)[0])


def __getattr__(name: str) -> RuleStep | GaussianRule:
    if name in RELAXED or name in exact_names():
        return step_of(name)
    raise AttributeError(f"module {__name__!r} has no rule {name!r}; it has {', '.join((*exact_names(), *RELAXED))}")


def __dir__() -> list[str]:
    return sorted({*globals(), *exact_names(), *RELAXED})
