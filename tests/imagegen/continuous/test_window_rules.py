"""Verdicts on a window made by hand: what stands, what is put in its place, and what is left open."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Law, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.tree import chains
from mmspec.imagegen.continuous.cspd.acceptance import Relaxation
from mmspec.imagegen.continuous.cspd.rules import OwnWithin, TrajectoryRatio
from mmspec.imagegen.continuous.cspd.window import WindowDraft, settled_nodes
from mmspec.imagegen.continuous.head_sampling.head import Gaussian, Trajectory
from mmspec.imagegen.continuous.masked_target import TokenEvidence

# a pad, then steps of two, one, two and one tokens; the second row ends early
STEP = torch.tensor([[-1, 0, 0, 1, 2, 2, 3], [-1, 0, 0, 1, 2, -1, -1]])


def walk(mean: Tensor, scale: float = 0.5) -> Trajectory:
    law = Gaussian(mean, torch.full_like(mean, scale).log())
    return Trajectory(mean, law, mean, torch.zeros(mean.shape[:-1]))


def window(gap: Tensor) -> tuple[WindowDraft, TokenEvidence]:
    """Drafts [2, 7, 1] whose target's own tokens lie `gap` [2, 7] away."""
    drafted = torch.arange(14.0).reshape(2, 7, 1)
    own = drafted + gap[..., None]
    law = Law("without_replacement", mean=drafted, scale=torch.ones_like(drafted))
    draft = WindowDraft(drafted, chains((0,) * 7), law, STEP >= 0, step=STEP, steps=4, trajectory=walk(drafted))
    flat = walk(own.flatten(0, 1).clone())
    return draft, TokenEvidence(mean=own, bad=torch.zeros(2, 7, dtype=torch.bool), own=own, trajectory=flat)


def judged(rule: object, draft: WindowDraft, evidence: TokenEvidence, seed: int = 0) -> Verdict:
    keys = Keys.of(seed, 2)
    rule = rule.rule_for(draft, evidence)
    rule.check_evidence(evidence)
    rule.check(draft)
    weights = rule.weigh(evidence, draft)
    verdict = rule.select(weights, torch.full((2, 7), 0.5).double(), draft)
    return rule.resample(evidence, draft, weights, verdict, keys)


def at(*nodes: tuple[int, int]) -> Tensor:
    made = torch.zeros(2, 7)
    for row, node in nodes:
        made[row, node] = 50.0
    return made


def test_a_step_that_holds_a_rejection_is_the_last_to_be_settled() -> None:
    keep = torch.ones(2, 7, dtype=torch.bool)
    keep[0, 3] = False
    assert settled_nodes(WindowDraft(None, None, None, step=STEP), keep, True).tolist() == [
        [False, True, True, True, False, False, False],
        [False, True, True, True, True, False, False],
    ]
    keep[0, 1] = False  # the other token of its step is settled with it
    assert (
        settled_nodes(WindowDraft(None, None, None, step=STEP), keep, True)[0].tolist()
        == [False, True, True] + [False] * 4
    )
    assert torch.equal(settled_nodes(WindowDraft(None, None, None, step=STEP), keep, False), STEP >= 0)


def test_patching_corrects_rejected_states_and_keeps_all_later_states() -> None:
    draft, evidence = window(at((0, 3), (1, 1)))
    verdict = judged(TrajectoryRatio(Relaxation(1.0)), draft, evidence)
    fallen = torch.zeros(2, 7, dtype=torch.bool)
    fallen[0, 3] = fallen[1, 1] = True
    assert verdict.kind == "mask" and torch.equal(verdict.keep, (STEP >= 0) & ~fallen)
    assert torch.equal(verdict.correction.isfinite()[..., 0], fallen)
    assert (verdict.correction - evidence.own)[fallen].abs().max() < 3  # a draw around the target's mean


def test_truncating_leaves_all_behind_the_first_fallen_step_open() -> None:
    draft, evidence = window(at((0, 3), (1, 1)))
    verdict = judged(TrajectoryRatio(Relaxation(1.0), truncate=True), draft, evidence)
    assert verdict.keep.nonzero().tolist() == [[0, 1], [0, 2], [1, 2]]
    assert verdict.correction.isfinite()[..., 0].nonzero().tolist() == [[0, 3], [1, 1]]


@pytest.mark.parametrize(("eps", "last"), [(0.0, 2), (0.3, 2), (0.6, 6)])
def test_within_tolerance_the_own_draws_stand_up_to_the_first_far_step(eps: float, last: int) -> None:
    draft, evidence = window(torch.full((2, 7), 0.5))
    verdict = judged(OwnWithin(eps), draft, evidence)
    put = (STEP >= 0) & (torch.arange(7) <= last)
    assert torch.equal(verdict.correction.isfinite()[..., 0], put)
    assert torch.equal(verdict.correction[put], evidence.own[put])  # never the draft
    assert verdict.keep.sum().item() == (int((STEP >= 0).sum()) if eps > 0.5 else 0)


def test_equal_drafts_stand_at_tolerance_zero() -> None:
    draft, evidence = window(torch.zeros(2, 7))
    verdict = judged(OwnWithin(0.0), draft, evidence)
    assert torch.equal(verdict.keep, STEP >= 0)


def test_a_bad_node_is_never_kept_and_is_settled_as_bad() -> None:
    draft, evidence = window(torch.zeros(2, 7))
    evidence.bad[0, 1] = True
    evidence.trajectory.last.mean[1] = torch.nan
    for rule in (TrajectoryRatio(Relaxation(1.0)), OwnWithin(1.0)):
        verdict = judged(rule, draft, evidence)
        assert not verdict.keep[0, 1] and verdict.correction[0, 1].isfinite().all()


def test_relaxation_accepts_states_that_the_plain_ratio_rejects() -> None:
    draft, evidence = window(torch.full((2, 7), 4.0))
    assert not judged(TrajectoryRatio(Relaxation(1.0)), draft, evidence).keep.any()
    assert judged(TrajectoryRatio(Relaxation(42.0)), draft, evidence).keep.sum() == (STEP >= 0).sum()


def test_too_few_tries_are_refused() -> None:
    with pytest.raises(ValueError, match="tries: expected at least 1 proposal, got 0"):
        TrajectoryRatio(Relaxation(), tries=0)
