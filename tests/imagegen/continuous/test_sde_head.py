"""The SDE head: NextStep-1's steps, and what they sample where the velocity is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.imagegen.continuous.head_sampling.head import sample
from mmspec.imagegen.continuous.head_sampling.sde_head import SDEHead
from tests.imagegen.continuous.heads import Field


def toward(mean: float, spread: float):
    """The velocity of the straight path from N(0, 1) to N(mean, spread^2), E[token - noise | x_t]."""

    def velocity(x: Tensor, t: Tensor, z: Tensor) -> Tensor:
        t = (t / 1000)[:, None]
        variance = (1 - t) ** 2 + (t * spread) ** 2
        return mean + (t * spread**2 - (1 - t)) / variance * (x - t * mean)

    return velocity


def test_a_step_matches_the_published_formula() -> None:
    x, v = torch.randn(5, 2), torch.randn(5, 2)
    head = SDEHead(Field(lambda x, t, z: v), 2, steps=20, span=0.96)
    assert head.steps == 21 and not head.last_noise
    for number in (0, 7, 19):  # counted in time
        t, dt = number * 0.048, 0.048
        law = head.gaussian(x, head.steps - 1 - number, head.about(x))
        score = (t * v - x) / ((1 - t) ** 2 + t * (1 - t))
        torch.testing.assert_close(law.mean, x + (v + (1 - t) * score) * dt)
        torch.testing.assert_close(law.log_scale.exp(), torch.full_like(x, (2 * (1 - t) * dt) ** 0.5))
    last = head.gaussian(x, 0, head.about(x))
    torch.testing.assert_close(last.mean, x + 0.04 * v)
    assert (last.log_scale == -torch.inf).all()


@pytest.mark.parametrize("span", (0.96, 1.0))
@pytest.mark.parametrize(("mean", "spread"), [(0.0, 1.0), (1.5, 0.5)])
def test_a_known_velocity_samples_its_distribution(mean: float, spread: float, span: float) -> None:
    head, rows = SDEHead(Field(toward(mean, spread)), 1, steps=200, span=span), 20000
    value = sample(head, torch.zeros(rows, 1), torch.randn(rows, 1), torch.randn(rows, head.steps, 1)).value
    assert abs(float(value.mean()) - mean) < 0.05 and abs(float(value.std()) - spread) < 0.05


def test_the_network_receives_the_time() -> None:
    seen = []
    head = SDEHead(Field(lambda x, t, z: seen.append(t.tolist()) or torch.zeros_like(x)), 1, steps=4, span=1.0)
    sample(head, torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 4, 1))
    assert seen == [[0.0], [250.0], [500.0], [750.0]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"span": 0.0}, "span: expected a share"),
        ({"span": 1.1}, "span: expected"),
        ({"steps": 0}, "steps: expected at least 1"),
        ({"steps": 1, "span": 1.0}, "steps: expected at least 2"),
    ],
)
def test_settings_out_of_range_are_refused(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SDEHead(Field(lambda x, t, z: x), 1, **given)
