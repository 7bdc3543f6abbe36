"""The rules of this package as accept steps, by name: `mmspec certify mmspec.certify.rules:block`.

Exact rules pass, relaxed rules fail with their distance. Relaxed rules have settings of a tiny vocabulary. Rules over
continuous values are tested with a chi-square test on the joint distribution of several emitted values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.certify.cases import Shape, chain_of
from mmspec.certify.certificate import CaseResult, Certificate
from mmspec.certify.samples import chi_square, visible_distance
from mmspec.core.round.draft import Draft, Drawn, Evidence, Law, run_of
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import Rule
from mmspec.core.round.rules.by_name import resolve
from mmspec.core.round.tree import chain, static_tree
from mmspec.methods import find, methods, names
from mmspec.methods.registry import ModelParts

SIZE, LENGTH, SCALE, BINS = 2, 2, 0.8, 3
OFFSETS = {"near": 0.2, "apart": 0.9, "far": 2.5}  # between the means of drafter and target, in standard deviations


class GaussianRule:
    """A rule over vectors drawn from isotropic Gaussians, certified on chains of two vectors of two numbers."""

    def __init__(self, rule: Rule):
        self.rule, self.__name__ = rule, f"rule {rule.name}"

    def certificate(self, on_case: Callable[[CaseResult], None] | None = None, rows: int = 60_000) -> Certificate:
        """Certify the rule. Every mean depends on the value before it. Each emitted number is mapped to its quantile in
        the target's distribution, in [0, 1). Those of the first three vectors must fill a 6-dimensional cube evenly."""
        results = []
        for seed, (name, offset) in enumerate(OFFSETS.items()):
            place, accepted = self._places(offset, rows, seed)
            counts = torch.bincount(place, minlength=BINS ** (SIZE * (LENGTH + 1))).double()
            flat = torch.full_like(counts, rows / len(counts))
            test = chi_square(counts, flat)
            off = float((counts - flat).abs().sum() / rows / 2)
            results.append(
                CaseResult(
                    f"Gaussians {name}",
                    tuple(range(LENGTH)),
                    "without_replacement",
                    BINS**SIZE,
                    rows,
                    rows,
                    None,
                    accepted,
                    off,
                    test.passed,
                    test.statistic,
                    test.freedom,
                    test.limit,
                    visible_distance(rows, test.freedom),
                )
            )
            if on_case is not None:
                on_case(results[-1])
        passed = all(result.passed for result in results)
        says = (
            "the emitted values have the target's law" if passed else "the emitted values do not have the target's law"
        )
        worst = max(result.distance for result in results)
        return Certificate(self.__name__, "samples", passed, worst, None, says, [], results)

    def _places(self, offset: float, rows: int, seed: int) -> tuple[Tensor, float]:
        """Return the cell of each row's emitted values, int64 [R], and the mean number of accepted values."""
        keys = Keys.of(seed, rows)
        start = torch.zeros(rows, SIZE, dtype=torch.float64)
        noise = keys.normal(Purpose.DRAFT, LENGTH, SIZE).double()
        values = [start]
        for i in range(LENGTH):
            values.append(_mean(values[-1], offset) + SCALE * noise[:, i])
        value = torch.stack(values, 1)
        scale = torch.full((rows, LENGTH + 1, 1), SCALE, dtype=torch.float64)
        row = torch.tensor([*range(LENGTH), -1])
        law = Law("without_replacement", row, mean=_mean(value[:, :-1], offset), scale=scale[:, :-1])
        draft, evidence = Draft(value, chain(LENGTH), law), Evidence(mean=_mean(value, 0.0), scale=scale)
        weights = self.rule.weigh(evidence, draft)
        verdict = self.rule.select(weights, keys.uniform(Purpose.ACCEPT, LENGTH + 1), draft)
        verdict = self.rule.resample(evidence, draft, weights, verdict, keys)
        run, count = run_of(draft, verdict)
        after = Keys.of(seed + 1000, rows).normal(Purpose.BONUS, LENGTH + 1, SIZE).double()
        cell, last = torch.zeros(rows, dtype=torch.long), start
        for i in range(LENGTH + 1):
            mean = _mean(last, 0.0)
            last = torch.where((i < count)[:, None], run[:, i], mean + SCALE * after[:, i])
            share = torch.special.ndtr((last - mean) / SCALE).clamp(0, 1 - 1e-12)
            for place in (share * BINS).long().unbind(-1):
                cell = cell * BINS + place
        return cell, float(verdict.depth.double().mean())


def _mean(value: Tensor, offset: float) -> Tensor:
    """Return the mean of the next value, float64 [..., 2]: rotated, shortened, and offset for the drafter."""
    turned = torch.stack((-value[..., 1], value[..., 0]), -1)
    return 0.6 * value + 0.3 * turned + offset * SCALE * torch.tensor([0.8, -0.6], dtype=torch.float64)


BRANCHES = (0, 0, 1, 1)


class RuleStep:
    """A rule as an accept step, with uniforms for its tests and its residual; `shapes` are those that it is proven for."""

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
        rule = self.rule.rule_for(draft, evidence)
        rule.check(draft)
        weights = rule.weigh(evidence, draft)
        verdict = rule.select(weights, torch.cat((root, uniforms[:, :-1]), 1), draft)
        verdict = rule.resample(evidence, draft, weights, verdict, _ColumnKeys(uniforms[:, -1]))
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


class _ColumnKeys(Keys):
    """Keys whose numbers are a column of uniforms, float64 [B]."""

    def __init__(self, column: Tensor):
        Keys.__init__(self, torch.zeros(len(column), dtype=torch.long))
        self.column = column

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        return self.column[:, None].expand(-1, *shape)


class _TinyCodes:
    """A codebook of three codes on a line, for rules that pool neighbouring codes."""

    @staticmethod
    def codebook() -> Tensor:
        return torch.tensor([[0.0], [1.0], [2.5]])


EXACT = names(kind="rule", exact=True)
RELAXED = tuple(rule.name for rule in methods(kind="rule", exact=False) if "tiny" in rule.facts)
GAUSSIAN = tuple(name for name in names("continuous", "rule") if name not in names("vlm", "rule"))
_ATTRIBUTES = {name.replace("++", "_plus"): name for name in (*EXACT, *RELAXED)}


def draw_modes(rule: Rule) -> tuple[Drawn, ...]:
    """Return the ways of drawing drafts that the rule is proven for, the simplest first."""
    drawn = {way for _, way in rule.proven_for}
    return tuple(way for way in ("without_replacement", "with_replacement", "deterministic") if way in drawn)


def step_of(name: str, drawn: Drawn | None = None) -> RuleStep | GaussianRule:
    """Return the rule of a name as a step; `drawn` None selects the first of its `draw_modes`."""
    if name in GAUSSIAN:
        return GaussianRule(resolve(name, greedy=False))
    if name in RELAXED:
        spec = find(name, kind="rule")
        rule = spec.make(spec.facts["tiny"], ModelParts(_TinyCodes))
    else:
        rule = resolve(name, greedy=False)
    return RuleStep(rule, drawn or draw_modes(rule)[0])


def __getattr__(name: str) -> RuleStep | GaussianRule:
    if name in _ATTRIBUTES:
        return step_of(_ATTRIBUTES[name])
    raise AttributeError(f"module {__name__!r} has no rule {name!r}; it has {', '.join(_ATTRIBUTES)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ATTRIBUTES})
