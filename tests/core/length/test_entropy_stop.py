"""AdaEDL: where drafts end, how thresholds adapt, and that sampled text keeps its distribution."""

from __future__ import annotations

from math import log, sqrt

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.certify.enumeration import EnumeratedDrafts, every_draft, inexactness, random_tables
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength, grow_by
from mmspec.core.length.entropy_stop import AdaptiveEntropyStop, EntropyStop
from mmspec.core.round.draft import Draft, Law, Verdict
from mmspec.core.round.rules import BlockVerification, Rule, TokenWise, Traversal
from mmspec.core.round.tree import chain
from mmspec.methods import parse
from mmspec.vlm.drafters import SmallModel
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import noisy
from tests.vlm.test_sampled_law import PROMPT, ROWS, STEPS, exact_law, narrow, p_value
from tests.vlm.tiny import prompt, tiny

FLAT, SURE = torch.zeros(1, 4), torch.tensor([[0.0, -torch.inf, -torch.inf, -torch.inf]])
DEPTH = 3


def test_a_draft_ends_where_the_bound_falls_below_the_threshold() -> None:
    bound = 1 - sqrt(0.2 * log(4))
    for threshold, goes_on in ((bound - 1e-3, True), (bound + 1e-3, False)):
        growth = EntropyStop(threshold, shortest=1, longest=3).begin()
        assert bool(grow_by(growth, 0, FLAT, None))  # the shortest draft has a value
        assert bool(grow_by(growth, 1, FLAT, None)) == goes_on
        assert not bool(grow_by(growth, 3, SURE, None))


@pytest.mark.parametrize("scale", (0.2, 5.0))
def test_a_sure_drafter_is_never_stopped(scale: float) -> None:
    growth = EntropyStop(1.0, scale=scale, longest=6).begin()
    assert all(bool(grow_by(growth, step, SURE, None)) for step in range(6))


def a_round(accepted: list[int], drawn: int) -> tuple[Draft, Verdict]:
    """A verified chain; rows are as many as numbers of accepted values."""
    rows, none = len(accepted), torch.zeros(len(accepted), 1, dtype=torch.long)
    draft = Draft(none.expand(rows, drawn + 1), chain(drawn), Law("deterministic"))
    return draft, Verdict("path", none[:, 0], none, torch.tensor(accepted))


def adaptive(rows: int = 1, **settings: object) -> AdaptiveEntropyStop:
    return AdaptiveEntropyStop(EntropyStop(**settings), rows, "cpu")


def test_the_threshold_rests_at_the_goal_and_moves_towards_it() -> None:
    control = adaptive(3, threshold=0.5, goal=0.75, step=0.1)
    for _ in range(20):
        control.learn(*a_round([2, 3, 4], 4))  # below, at and above the goal
    rising, resting, falling = control.threshold.tolist()
    assert resting == 0.5 and rising == pytest.approx(0.7, abs=1e-6) and falling == pytest.approx(0.3, abs=1e-6)


def test_the_share_settles_at_the_goal() -> None:
    control, reached = adaptive(threshold=0.1, goal=0.8, step=0.1), []
    for _ in range(200):  # the acceptance rises with the threshold
        share = 0.6 + 0.4 * float(control.threshold)
        control.learn(*a_round([round(100 * share)], 100))
        reached.append(share)
    assert sum(reached[-20:]) / 20 == pytest.approx(0.8, abs=0.02)


def test_rows_without_a_draft_learn_nothing() -> None:
    control = adaptive(2, goal=0.5)
    draft, verdict = a_round([0, 0], 2)
    draft.valid = torch.tensor([[True, True, False], [True, False, False]])
    control.learn(draft, verdict)
    assert control.share.tolist() == [0.25, 0.5] and control.threshold[1] == pytest.approx(0.4)
    assert control.threshold[0] == pytest.approx(0.401)


def test_a_fitted_scale_meets_the_measured_acceptance() -> None:
    control = adaptive(scale=None, threshold=0.5)
    for accepted in (1, 0, 1, 0, 0, 0, 1, 0):  # 3 of the 8 verified values
        growth = control.begin()
        assert bool(grow_by(growth, 1, FLAT, None)) == (control.scale[0] == 0)
        control.learn(*a_round([accepted], 1))
    assert float(control.scale) == pytest.approx((5 / 8) ** 2 / log(4), rel=1e-5)


def stopping(q: list[Tensor], threshold: float) -> object:
    """Decisions of the controller on a chain, for every prefix of an enumeration."""

    def grow(value: Tensor, valid: Tensor, node: int) -> Tensor:
        growth, code = EntropyStop(threshold, shortest=0).begin(), torch.zeros(len(value), dtype=torch.long)
        for step in range(node):
            code = code * q[0].shape[-1] + value[:, step].clamp_min(0) if step else code
            goes_on = grow_by(growth, step, q[step][code].log(), None)
        return goes_on

    return grow


@pytest.mark.parametrize("rule", (TokenWise(), BlockVerification(), Traversal()), ids=lambda rule: rule.name)
def test_stops_by_entropy_are_exact_and_stops_by_the_drawn_value_are_not(rule: Rule) -> None:
    p, q = random_tables(3, DEPTH + 1, 1, peak=2.0), random_tables(3, DEPTH, 4, peak=2.0)
    grow = stopping(q, 0.6)
    drafts = every_draft(chain(DEPTH), q, "without_replacement", grow)
    lengths = (drafts.valid.sum(-1) - 1).tolist()
    assert min(lengths) < max(lengths) == DEPTH
    assert inexactness(rule, chain(DEPTH), p, q, grow=grow) < 1e-12
    assert inexactness(rule, chain(DEPTH), p, q, drafts=_surprised(q)) > 1e-3


def _surprised(q: list[Tensor]) -> EnumeratedDrafts:
    """Drafts that end where the drawn value itself is surprising: a mistake."""
    drafts = every_draft(chain(DEPTH), q, "without_replacement")
    for node in range(1, DEPTH + 1):
        chance = q[node - 1][drafts.code[:, node - 1]].gather(1, drafts.value[:, node, None])[:, 0]
        drafts.valid[:, node] = drafts.valid[:, node - 1] & (1 - (-0.2 * chance.log()).sqrt() >= 0.6)
    return drafts


def test_sampled_text_has_the_targets_distribution() -> None:
    def sampled(length: object, rows: int) -> object:
        return mmspec.generate(
            narrow(),
            input_ids=PROMPT.expand(rows, -1),
            drafter=SmallModel(narrow(0.2), length),
            seed=4,
            do_sample=True,
            max_new_tokens=STEPS + 2,
            top_k=0,
            temperature=1.0,
            return_dict=True,
        )

    stop = EntropyStop(0.5, step=0.2, shortest=0, longest=3)
    out, longest = sampled(stop, ROWS), sampled(FixedLength(3), 1000)
    assert p_value(out.sequences[:, 3 : 3 + STEPS], exact_law(1.0)) > 1e-3
    assert 1.05 < out.stats.accept_length < longest.stats.accept_length - 0.05


@pytest.mark.parametrize("name", ("small", "eagle", "medusa"))
def test_greedy_text_is_the_models_and_a_row_adapts_as_it_does_alone(name: str) -> None:
    stop, inputs = EntropyStop(0.45, step=0.5, goal=0.5, longest=5), prompt("llama", batch=4)
    drafter = SmallModel(noisy("llama"), stop) if name == "small" else make(name).with_shape(Chain(stop))
    options = dict(max_new_tokens=16, do_sample=False)
    out = mmspec.generate(tiny("llama"), drafter=drafter, return_dict=True, **options, **inputs)
    assert torch.equal(out.sequences, tiny("llama").generate(**inputs, **options))
    alone = {key: value[2:3] for key, value in inputs.items()}
    single = mmspec.generate(tiny("llama"), drafter=drafter, return_dict=True, **options, **alone)
    together = [accepted[2] for accepted in out.stats.accepted if accepted[2] is not None]
    assert together == [accepted[0] for accepted in single.stats.accepted]
    request = mmspec.vlm.start(tiny("llama"), drafter=drafter, **options, **alone)
    request.run()
    control = request.state.length if name == "small" else request.state.shape.length
    assert control.threshold[0] != stop.threshold  # verdicts reach the controller


def test_its_text_has_all_settings() -> None:
    made = parse("entropy:threshold=0.6,scale=none,longest=4", "image", "controller").make()
    assert made == EntropyStop(0.6, scale=None, longest=4)
    for wrong, match in (
        ("entropy:threshold=1.5", "threshold: expected at least 0 and at most 1, got 1.5"),
        ("entropy:scale=0", "scale: expected above 0"),
        ("entropy:shortest=9", "expected 0 <= shortest"),
    ):
        with pytest.raises(ValueError, match=match):
            parse(wrong, "vlm", "controller").make()
