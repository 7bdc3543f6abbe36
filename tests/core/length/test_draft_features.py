"""Features of the last draft in the choice of lengths: constant features change nothing, and telling ones save time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import mmspec
from mmspec.core.length import goodput
from mmspec.core.length.draft_features import FeaturePrior, Features, draft_features
from mmspec.core.length.goodput import Goodput
from mmspec.core.length.round_estimates import AcceptanceModel, shifted
from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.tree import chain
from tests.core.length.test_goodput import REQUESTS, Answer, Scripted, World, decode
from tests.vlm.drafters.test_lengths import Whimsical
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny


class Moody(World):
    """Values come in spells of 12 that are nearly always accepted or hardly ever; the spell shows in the features."""

    def good(self, place: tuple) -> bool:
        name, row, at = place
        return random.Random(str((name, row, at // 12))).random() < 0.5

    def accepts(self, place: tuple, depth: int) -> bool:
        return random.Random(str((self.seed, place))).random() < (0.93 if self.good(place) else 0.1)


def seconds(monkeypatch: pytest.MonkeyPatch, prior: bool, seen: Callable[[Moody, Answer], Features]) -> float:
    """The time of many answers, where `seen` gives the features after a round."""
    world = Moody(lambda depth: 0.0, seed=3)
    control = Goodput(Scripted(world), clock=world.clock, prior=prior)
    targets = []
    opened = control.open
    monkeypatch.setattr(control, "open", lambda target: targets.append(target) or opened(target))
    monkeypatch.setattr(goodput, "draft_features", lambda *round: seen(world, targets[-1]))
    return decode(world, control, REQUESTS)


def test_constant_features_leave_every_choice_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    constant = seconds(monkeypatch, True, lambda world, target: (0.3, 0.7, 1.0, 2.0))
    assert constant == seconds(monkeypatch, False, lambda world, target: (0.3, 0.7, 1.0, 2.0))


def test_telling_features_save_time_and_noise_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def telling(world: Moody, target: Answer) -> Features:
        return (1.0 if world.good((target.name, 0, target.emitted[0])) else 0.0, 0.5)

    noise = random.Random(5)
    without = seconds(monkeypatch, False, telling)
    assert seconds(monkeypatch, True, telling) < 0.93 * without
    assert seconds(monkeypatch, True, lambda world, target: (noise.random(), noise.random())) < 1.03 * without


def test_a_correction_moves_the_chances_of_all_depths() -> None:
    model = AcceptanceModel()
    for _ in range(30):
        model.add(2, 4)
    assert model.shares(4, 0.5) == model.shares(4, 0.5, 0.0)
    assert all(a < b for a, b in zip(model.shares(4), model.shares(4, 0.0, 0.8), strict=True))
    assert model.tokens(4, 0.0, -1.0)[-1] < model.tokens(4)[-1]
    assert shifted(0.5, 1.0) == pytest.approx(0.7310586) and shifted(1.0, -9.0) == 1.0


def test_a_prior_learns_the_sign_of_a_feature() -> None:
    prior, rng = FeaturePrior(), random.Random(0)
    for _ in range(200):
        good = rng.random() < 0.5
        prior.learn((float(good), 1.0), [0.5] * 4, [4 if good else 0], 4)
    assert prior.shift((1.0, 1.0)) > 1 > -1 > prior.shift((0.0, 1.0)) and prior.weights[1] == 0
    assert prior.shift(None) == 0


def test_features_of_a_sampled_and_of_a_greedy_draft() -> None:
    sure, even = torch.tensor([0.0, -torch.inf]), torch.zeros(2)
    scores = torch.stack([torch.stack([sure, even]), torch.stack([even, even])])  # [B, M, V]
    value, log2 = torch.zeros(2, 3, dtype=torch.long), torch.tensor(2.0).log().item()
    drawn = Draft(value, chain(2), Law("without_replacement", torch.tensor([0, 1, -1]), scores))
    path = torch.tensor([[0, 2], [0, 0]])
    verdict = Verdict("path", path[:, -1], path, torch.tensor([1, 0]))
    assert draft_features(drawn, Evidence(), verdict, [True, False]) == pytest.approx((0.5, 0.75, log2 / 2, log2))
    assert draft_features(drawn, Evidence(), verdict, [True, True]) == pytest.approx((0.5, 0.625, 0.75 * log2, log2))
    greedy = Draft(value, chain(2), Law("deterministic"))
    evidence = Evidence(torch.stack([torch.stack([sure, even, sure]), torch.stack([sure, even, even])]))
    assert draft_features(greedy, evidence, verdict, [True, True]) == pytest.approx((1, 1, 0, 0))
    assert draft_features(greedy, Evidence(), verdict, [True, True]) is None
    assert draft_features(drawn, Evidence(), verdict, [False, False]) is None


def test_text_stays_the_models() -> None:
    inputs, options = prompt("llava", images=2, batch=4), dict(max_new_tokens=24, do_sample=False)
    control = Goodput(make("eagle"), clock=Whimsical(), prior=True)
    out = mmspec.generate(tiny("llava"), drafter=control, return_dict=True, **options, **inputs)
    assert torch.equal(out.sequences, tiny("llava").generate(**inputs, **options))
    assert out.stats.accept_length > 1 and next(iter(control.bandits.values())).prior.rounds > 0
