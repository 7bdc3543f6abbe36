"""LANTERN's public code: neighbour table, ratios and residual laws of all its settings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.rules import RecursiveRejection, TargetMatch
from mmspec.core.round.rules.relaxed import exact_rule_for
from mmspec.core.round.tree import static_tree
from mmspec.imagegen.rules.lantern import Lantern, LanternPlus, nearest_codes
from mmspec.imagegen.rules.relaxed import siblingwise, subtract_share
from tests.parity import case

CASE = "llamagen/lantern_acceptance"
# the case holds float32 arithmetic, where ratios reach a few hundred
RATIO = dict(atol=1e-6, rtol=2e-6)


def drafted(public: dict[str, Tensor], processor: str, tree: str, count: int) -> tuple[Draft, Evidence]:
    """The first `count` siblings of each of the 12 parents."""
    child = public[f"{processor}.in.{tree}_children"][:, :count]
    shape = static_tree([0] * (count + 1))
    target = public[f"{processor}.in.target_logits"]
    if processor == "top24":
        target = target.masked_fill(target < target.topk(24).values[:, -1:], -torch.inf)
    law = Law("deterministic")
    if tree == "static":
        q = public[f"{processor}.in.static_parent_q"].log()[:, None]
        law = Law("without_replacement", torch.tensor([0] + [-1] * count), q)
    value = torch.cat((torch.zeros(12, 1, dtype=torch.long), child), 1)
    return Draft(value, shape, law), Evidence(target[:, None].expand(-1, count + 1, -1))


def test_neighbours_of_raw_rows_are_the_public_table() -> None:
    public = case(CASE)
    found = nearest_codes(public["in.codebook"], 63, normalise=False)
    assert (found == public["out.neighbours"]).all()


@pytest.mark.parametrize("setting", range(10))
@pytest.mark.parametrize("processor", ("full", "top24"))
@pytest.mark.parametrize("tree", ("static", "dynamic"))
def test_ratios_and_residuals_are_the_public_codes(tree: str, processor: str, setting: int) -> None:
    public = case(CASE)
    on, k, value = public["in.settings"][setting].tolist()
    expected_ratio = public[f"{processor}.out.{tree}_ratio"][setting]
    expected_law = public[f"{processor}.out.{tree}_residual"][setting]
    for count in (1, 2, 3):
        draft, evidence = drafted(public, processor, tree, count)
        weights = exact_rule_for(draft).weigh(evidence, draft)
        if on:
            table = public["out.neighbours"]
            make = LanternPlus if value > 1 else Lantern
            rule = make(table, int(k), value, residual=tree)
            ratio, law = siblingwise(weights, draft, None, rule.ratio, rule.reject)
            weights = rule.weigh(evidence, draft)
            torch.testing.assert_close(weights.threshold[:, 1:], ratio[:, 1:].clamp_max(1))
            law = rule.residual(evidence, draft, weights, torch.zeros(12, dtype=torch.long))
        else:  # without relaxation the public code is recursive rejection, or target-match
            ratio, law = siblingwise(
                weights, draft, None, lambda siblings: siblings.of(siblings.law) / siblings.own_share(), subtract_share
            )
            law = law[:, 0]
            exact = (RecursiveRejection() if tree == "static" else TargetMatch()).weigh(evidence, draft)
            torch.testing.assert_close(exact.threshold[:, 1:], ratio[:, 1:].clamp_max(1), **RATIO)
        torch.testing.assert_close(ratio[:, 1:], expected_ratio[:, :count], **RATIO)
        clamped = ratio[:, 1:].clamp_max(1)  # what a draft is accepted with
        torch.testing.assert_close(clamped, expected_ratio[:, :count].clamp_max(1), atol=1e-6, rtol=0)
        torch.testing.assert_close(law, expected_law[:, count - 1], atol=1e-6, rtol=0)
