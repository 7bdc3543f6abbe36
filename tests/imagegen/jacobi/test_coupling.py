"""Coupled draws have the new law, keep the old value as often as claimed, and the public bookkeeping does not add up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.round.keys import Keys, Purpose
from mmspec.imagegen.jacobi.jacobi_drafts import gumbel_pick, maximal_law
from tests.imagegen.jacobi.mutants import keep_above

OLD, NEW, TARGET = (
    torch.tensor(law, dtype=torch.float64) for law in ((0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4), (0.4, 0.1, 0.1, 0.4))
)
EVERY = torch.arange(4)


def verified(refreshed: Tensor, record: Tensor) -> Tensor:
    """What a round emits where drafted values d -> y [4, 4] were refreshed and `record` [4, 4, 4] is kept as the law of y."""
    emitted = torch.zeros(4, dtype=torch.float64)
    for old in range(4):
        for value in range(4):
            chance = OLD[old] * refreshed[old, value]
            emitted += chance * maximal_law(TARGET, record[old, value], torch.tensor(value))
    return emitted


def test_the_new_distribution_on_record_is_exact_and_the_mixed_is_not() -> None:
    refreshed = maximal_law(NEW.expand(4, 4), OLD.expand(4, 4), EVERY)
    everywhere = NEW.expand(4, 4, 4)
    assert torch.allclose(verified(refreshed, everywhere), TARGET, atol=1e-15)
    mixed = torch.where(torch.eye(4, dtype=torch.bool)[..., None], OLD, everywhere)
    published = torch.tensor((0.17, 0.07, 0.13, 0.63), dtype=torch.float64)
    assert torch.allclose(verified(refreshed, mixed), published, atol=0.005)


@pytest.mark.parametrize(("tau", "wrong"), ((0.5, (0.44, 0.19, 0.11, 0.26)), (1.0, (0.41, 0.07, 0.14, 0.38))))
def test_keeping_confident_values_is_not(tau: float, wrong: tuple[float, ...]) -> None:
    refreshed = keep_above(tau)(NEW.expand(4, 4), OLD.expand(4, 4), EVERY)
    emitted = verified(refreshed, NEW.expand(4, 4, 4))
    assert torch.allclose(emitted, torch.tensor(wrong, dtype=torch.float64), atol=0.006)


def laws(seed: int, size: int) -> tuple[Tensor, Tensor]:
    scores = torch.randn(2, 50, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    scores[torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed + 1)) < 0.2] = -torch.inf
    scores[..., 0] = 0
    return scores.softmax(-1).unbind()


@pytest.mark.parametrize("size", (2, 5, 11))
def test_maximal_coupling_has_the_new_distribution_and_the_fewest_changes(size: int) -> None:
    p, q = laws(size, size)
    every = torch.arange(size).expand(50, size)
    shape = (50, size, size)
    moved = maximal_law(p[:, None].expand(shape), q[:, None].expand(shape), every)
    law = torch.where(q[..., None] > 0, moved * q[..., None], 0.0)
    assert torch.allclose(law.sum(1), p, atol=1e-14)
    assert torch.allclose(law.diagonal(dim1=1, dim2=2).sum(-1), p.minimum(q).sum(-1), atol=1e-14)


def test_equal_and_one_hot_distributions() -> None:
    kept = maximal_law(NEW.float(), NEW.float(), torch.tensor(2))
    assert torch.equal(kept, torch.eye(4)[2])
    point = torch.eye(4)[1]
    assert torch.allclose(maximal_law(NEW.float(), point, torch.tensor(1)), NEW.float())
    assert torch.allclose(maximal_law(point, NEW.float(), torch.tensor(3)), point)


def test_shared_noise_draws_from_each_distribution_and_often_agrees() -> None:
    rows = 100_000
    noise = Keys.of(3, rows).gumbel(Purpose.DRAFT, 4)
    old, new = (gumbel_pick(law.log().float(), noise) for law in (OLD, NEW))
    for value, law in ((old, OLD), (new, NEW)):
        assert (torch.bincount(value, minlength=4) / rows - law).abs().max() < 5 * (0.25 / rows) ** 0.5
    distance = float((OLD - NEW).abs().sum() / 2)
    assert float((old == new).double().mean()) > (1 - distance) / (1 + distance) - 0.01
