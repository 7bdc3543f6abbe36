"""What MAR is trained on: how much is masked, and that only what is masked teaches."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.imagegen.continuous.mar.training import (
    LEAST,
    SPREAD,
    head_loss,
    mask_ratio,
    masked_loss,
    sampled_ratio,
    training_mask,
)
from mmspec.imagegen.continuous.schedules.generation_order import cosine_steps
from tests.imagegen.continuous.tiny import transformer


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_mask_ratio_is_a_cut_normal() -> None:
    def density(x: float) -> float:
        return math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)

    low = (LEAST - 1) / SPREAD
    mass = 0.5 * math.erf(-low / math.sqrt(2))
    drawn = [mask_ratio((i + 0.5) / 4000) for i in range(4000)]
    mean, square = (sum(x**power for x in drawn) / 4000 for power in (1, 2))
    gap = (density(low) - density(0)) / mass
    assert mean == pytest.approx(1 + SPREAD * gap, abs=1e-6)
    assert square - mean**2 == pytest.approx(SPREAD**2 * (1 + low * density(low) / mass - gap**2), abs=1e-6)
    assert mask_ratio(0) == pytest.approx(LEAST) and mask_ratio(1) == 1


def test_rows_have_equally_many_masked_tokens_at_places_of_their_own() -> None:
    counts, places = set(), torch.zeros(10)
    for seed in range(300):
        mask = training_mask(4, 10, seeded(seed))
        assert len(set(mask.sum(1).tolist())) == 1
        counts.add(int(mask[0].sum()))
        places += mask.sum(0)
    assert counts == {8, 9, 10}  # a ratio of exactly 0.7 is never drawn
    assert float(places.std() / places.mean()) < 0.03


def test_a_model_may_train_on_the_shares_that_sampling_meets() -> None:
    """Behind step s of N as many tokens are masked as at quantile s / N, and a mask is never empty."""
    masked = [step.masked for step in cosine_steps(1000, 8)[:-1]]
    assert masked == [math.floor(1000 * sampled_ratio(s / 8)) for s in range(1, 8)]
    counts = {int(training_mask(2, 6, seeded(seed), sampled_ratio)[0].sum()) for seed in range(60)}
    assert counts == {1, 2, 3, 4, 5, 6}


@torch.no_grad()
def test_the_loss_is_the_heads_at_masked_positions_alone() -> None:
    model, tokens, labels = transformer(), torch.randn(3, 16, 3), torch.tensor([0, 4, -1])
    loss = masked_loss(model, tokens, labels, seeded(), copies=2)
    drawn = seeded()
    mask = training_mask(3, 16, drawn)
    rows = int(mask.sum())
    t = torch.randint(1000, (2 * rows,), generator=drawn)
    noise = torch.randn(2 * rows, 3, generator=drawn)
    z, clean = model(tokens, mask, labels)[mask], tokens[mask]
    for copy in range(2):
        mine = slice(copy * rows, (copy + 1) * rows)
        alone = head_loss(model.diffloss["net"], clean, t[mine], noise[mine], z)
        torch.testing.assert_close(loss.noise[mine], alone.noise)
        torch.testing.assert_close(loss.variance[mine], alone.variance)


def test_training_learns_a_token_that_is_always_the_same() -> None:
    model = transformer().requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    tokens, means = torch.tensor([0.5, -1.0, 1.5]).expand(4, 16, 3), []
    for step in range(80):
        loss = masked_loss(model, tokens, torch.tensor([0, 1, 2, 3]), seeded(step)).noise.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        means.append(float(loss.detach()))
    assert sum(means[-10:]) < 0.5 * sum(means[:10])
