"""Routers replayed on pairs: the oracle is never beaten, and each router rewrites the blocks that it names."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from mmspec.video import replayed_rewards, train_advantage
from mmspec.video.routing.learned import FEATURES


def pairs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    features = torch.randn(count, len(FEATURES), generator=drawn)
    # low drafts gain more, but their reward does not tell all
    gains = -0.4 * features[:, 0] + features[:, 8].tanh() + 0.1 * torch.randn(count, generator=drawn)
    return features, gains


@pytest.mark.parametrize("seed", range(4))
def test_no_choice_of_as_many_blocks_beats_the_oracle(seed: int) -> None:
    features, gains = pairs(6, seed)
    draft = features[:, 0]
    for rewrites in range(7):
        found = replayed_rewards(features, gains, rewrites)
        best = max(float((draft.sum() + gains[list(chosen)].sum()) / 6) for chosen in combinations(range(6), rewrites))
        assert found["oracle"] == pytest.approx(best, abs=1e-6)
        assert found["oracle"] >= max(found["sdvg"], found["random"]) - 1e-9


def test_the_target_with_the_best_blocks_is_no_oracle() -> None:
    """Rewriting where the target's reward is highest spends blocks on drafts that were good already."""
    features, gains = pairs(40, 1)
    draft = features[:, 0]
    chosen = (draft + gains).topk(10).indices
    mutant = float((draft.sum() + gains[chosen].sum()) / 40)
    assert mutant < replayed_rewards(features, gains, 10)["oracle"] - 0.05


def test_each_router_rewrites_the_blocks_that_it_names() -> None:
    features, gains = torch.zeros(4, len(FEATURES)), torch.tensor([0.0, 1.0, 3.0, 0.0])
    features[:, 0] = torch.tensor([0.1, 0.2, 0.9, 0.8])
    features[:, 1] = torch.tensor([0.9, 0.1, 0.9, 0.8])
    found = replayed_rewards(features, gains, 1)
    assert found == pytest.approx({"random": 0.75, "sdvg": 0.5, "oracle": 1.25})
    assert replayed_rewards(features, gains, 1, reduction="mean")["sdvg"] == pytest.approx((2.7 + 1.0) / 4)
    none, every = (replayed_rewards(features, gains, count) for count in (0, 4))
    assert len({round(value, 6) for value in none.values()}) == len({round(value, 6) for value in every.values()}) == 1


def test_a_trained_model_lies_between_sdvg_and_the_oracle_on_other_blocks() -> None:
    model = train_advantage(*pairs(400, 5)).model
    features, gains = pairs(200, 6)
    found = replayed_rewards(features, gains, 60, model)
    assert found["random"] < found["sdvg"] < found["learned"] <= found["oracle"]


def test_pairs_that_do_not_fit_are_refused() -> None:
    features, gains = pairs(5, 0)
    for wrong in ((features, gains, 6), (features, gains, -1), (features[:, 1:], gains, 2), (features, gains[1:], 2)):
        with pytest.raises(ValueError, match="expected"):
            replayed_rewards(*wrong)
