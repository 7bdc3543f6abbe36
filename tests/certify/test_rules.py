"""Every rule of the package as an accept step: exact ones pass to rounding, relaxed ones fail with their distance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.certify import certify, rules
from mmspec.certify.cases import case_of, chain_of
from mmspec.certify.enumeration import inexactness
from mmspec.certify.rules import GAUSSIAN, RELAXED, GaussianRule, draw_modes, step_of
from mmspec.core.round.draft import Draft, Drawn, Evidence, Verdict
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import Reflection, Weights
from mmspec.core.round.rules.base import at_node
from mmspec.core.round.rules.by_name import resolve
from mmspec.methods import names

EXACT = tuple(name for name in names(kind="rule", exact=True) if name not in GAUSSIAN)


@pytest.mark.default_cells(
    "exact-with_replacement",
    "traversal-without_replacement",
    "block-without_replacement",
    "kseq-with_replacement",
)
@pytest.mark.parametrize(
    ("name", "drawn"), [(name, drawn) for name in EXACT for drawn in draw_modes(resolve(name, greedy=False))]
)
def test_exact_rules_pass(name: str, drawn: Drawn) -> None:
    found = certify(step_of(name, drawn), laws=("far" if drawn == "deterministic" else "top-k",))
    assert found.exact and found.method == "regions" and found.distance < 1e-12


@pytest.mark.default_cells("lantern", "gsd", "typical")
@pytest.mark.parametrize("name", RELAXED)
def test_relaxed_rules_fail_with_the_distance_that_enumeration_gives(name: str) -> None:
    step = step_of(name)
    found = certify(step, laws=("far",))
    assert not found.exact and found.distance > (0.005 if name == "fuzzy" else 0.05)
    for case, shape in zip(found.cases, step.shapes, strict=True):
        laws = case_of("far", shape, 3, 1)
        if name != "typical":  # whose selection looks at all of a path, not at a test each
            wanted = inexactness(step.rule, shape.tree, laws.near, laws.q, drawn=shape.drawn)
            assert case.distance == pytest.approx(wanted, abs=1e-12)


def test_no_rule_is_left_out() -> None:
    assert set(GAUSSIAN) < set(names(kind="rule", exact=True))
    assert set(RELAXED) == set(names(kind="rule", exact=False)) - {"judge"}  # which needs a trained head
    assert all(callable(getattr(rules, name.replace("++", "_plus"))) for name in (*EXACT, *RELAXED)) and set(
        EXACT
    ) < set(dir(rules))
    with pytest.raises(AttributeError, match="no rule 'nonsense'"):
        rules.nonsense  # noqa: B018


@pytest.mark.parametrize("name", GAUSSIAN)
def test_rules_of_gaussians_pass(name: str) -> None:
    found = certify(getattr(rules, name))
    assert found.exact and found.method == "samples" and all(case.visible < 0.06 for case in found.cases)


class DrawnAnew(Reflection):
    """What follows a rejection is a plain draw from the target."""

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        mean, scale = at_node(evidence.mean, verdict.node), at_node(evidence.scale, verdict.node)
        verdict.correction = mean + scale * keys.normal(Purpose.BONUS, mean.shape[-1]).to(mean.dtype)
        return verdict


class Warmer(Reflection):
    """Thresholds three hundredths too high."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = super().weigh(evidence, draft)
        weights.threshold = weights.threshold + 0.1
        return weights


@pytest.mark.parametrize("rule", (DrawnAnew(), Warmer()), ids=lambda rule: type(rule).__name__)
def test_wrong_rules_of_gaussians_fail(rule: Reflection) -> None:
    assert not certify(GaussianRule(rule)).exact


def test_the_residual_is_drawn_with_the_last_uniform() -> None:
    seen: list[Tensor] = []
    step = step_of("token")

    def spy(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(uniforms)
        return step(tokens, q, p, uniforms, torch.tensor([0]))

    assert certify(spy, shapes=[chain_of(1)], laws=("random",)).exact and seen[0].shape[1] == 2
