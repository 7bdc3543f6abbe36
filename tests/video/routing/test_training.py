"""The learned router: pairs out of explored films, a regression that finds what is there, files that come back the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmspec.video import Advantage, Explore, Learned, Threshold, scored_pairs, train_advantage
from mmspec.video.routing.learned import FEATURES
from tests.video.decoding.tiny import bright, pipeline, sdvg

COUNT = len(FEATURES)


def pairs(count: int = 160, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Gains that follow from two features, each of a scale and a centre of its own."""
    drawn = torch.Generator().manual_seed(1)
    rows = torch.randn(count, COUNT, generator=drawn) * torch.linspace(0.1, 30, COUNT) + torch.linspace(-5, 5, COUNT)
    gains = 3 * torch.tanh(rows[:, 2] - rows[:, 2].mean()) - 0.2 * (rows[:, 8] - 3)
    return rows, 10 + gains + noise * torch.randn(count, generator=drawn)


def test_gains_that_depend_on_the_features_are_learned_and_noise_is_not() -> None:
    rows, gains = pairs()
    found = train_advantage(rows, gains)
    assert found.correlation > 0.9 and found.loss < 0.2
    shuffled = gains[torch.randperm(len(gains), generator=torch.Generator().manual_seed(0))]
    assert train_advantage(rows, shuffled).correlation < 0.6


def test_training_is_a_function_of_pairs_and_seed(tmp_path: Path) -> None:
    rows, gains = pairs()
    state = torch.get_rng_state()
    one, same, other = (train_advantage(rows, gains, steps=20, seed=seed).model for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one(rows), same(rows)) and not torch.equal(one(rows), other(rows))
    one.save_pretrained(tmp_path / "router")
    assert sorted(file.name for file in (tmp_path / "router").iterdir()) == ["config.json", "model.safetensors"]
    assert torch.equal(Advantage.from_pretrained(tmp_path / "router")(rows), one(rows))


def test_a_feature_that_never_varied_does_not_decide() -> None:
    rows, gains = pairs()
    rows[:, 5] = 1.0
    model, late = train_advantage(rows, gains, steps=50).model, rows[:4].clone()
    late[:, 5] = 1.5
    assert (model(late) - model(rows[:4])).abs().max() < gains.std()


def test_explored_films_give_pairs_and_a_router_that_decides_by_them() -> None:
    pipe, prompts = pipeline(blocks=6), ["a", "b", "c", "d"]
    explored = [pipe(prompts, seed=s, decoding=sdvg(bright, router=Explore(0.4)), pixels=False).stats for s in (0, 1)]
    rows, gains = scored_pairs(explored)
    redrawn = [r for one in explored for row in one.records for r in row if r.drafted and not r.kept]
    assert len(rows) == len(redrawn) and rows.shape[1] == COUNT
    assert gains.tolist() == pytest.approx([min(r.own_scores) - min(r.scores) for r in redrawn])
    mean = scored_pairs(explored, "mean")[1]
    assert mean.tolist() == pytest.approx([sum(r.own_scores) / 4 - sum(r.scores) / 4 for r in redrawn], abs=1e-6)
    model = train_advantage(rows, gains, steps=30).model
    cut = model(rows).median().item()
    routed = pipe(prompts, seed=5, decoding=sdvg(bright, router=Learned(model, cut))).stats
    judged = [record for row in routed.records for record in row if record.drafted]
    wanted = [model(torch.tensor(record.features)[None]).item() <= cut for record in judged]
    assert [record.kept for record in judged] == wanted and set(wanted) == {True, False}


def test_pairs_that_teach_nothing_are_refused() -> None:
    rows, gains = pairs(12)
    stats = pipeline()("a", seed=0, decoding=sdvg(bright, router=Threshold(0.5))).stats
    for make, told in (
        (lambda: scored_pairs([stats]), "stats: expected blocks that both models generated"),
        (lambda: train_advantage(rows[:, 1:], gains), "features, gains: expected"),
        (lambda: train_advantage(rows, gains[1:]), "features, gains: expected"),
        (lambda: train_advantage(rows[:9], gains[:9]), "gains: expected 10 pairs or more, got 9"),
        (lambda: train_advantage(rows, gains.index_fill(0, torch.tensor([3]), torch.nan)), "expected finite numbers"),
    ):
        with pytest.raises(ValueError, match=told):
            make()
