"""Orders and steps: every position once, from the end of the order, as many a step as the cosine leaves."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.core.round.keys import Keys
from mmspec.imagegen.continuous.masked_target import TokenGuidance
from mmspec.imagegen.continuous.schedules.generation_order import cosine_steps, random_orders, ranks


@pytest.mark.parametrize(
    ("total", "count"), [(16, 6), (256, 64), (256, 256), (16, 16), (16, 1), (7, 5), (1, 1), (16, 40)]
)
def test_steps_decide_every_rank_once_from_the_end(total: int, count: int) -> None:
    steps = cosine_steps(total, count)
    covered = [rank for step in reversed(steps) for rank in range(step.first, step.last)]
    assert covered == list(range(total)) and len(steps) <= count
    assert all(step.masked == max(step.first, 1) for step in steps)


def test_as_many_steps_as_tokens_decide_one_token_each() -> None:
    assert [(step.first, step.last) for step in cosine_steps(256, 256)] == [(n, n + 1) for n in reversed(range(256))]


def test_the_cosine_gives_the_number_of_masked_tokens() -> None:
    for number, step in enumerate(cosine_steps(256, 20)[:-1], 1):
        assert step.masked == math.floor(256 * math.cos(math.pi / 2 * number / 20))


@pytest.mark.parametrize("count", (0, -1, 1.5, 2**40))
def test_other_counts_are_refused(count: object) -> None:
    with pytest.raises(ValueError, match="num_iter: expected"):
        cosine_steps(16, count)


def test_an_order_is_each_rows_own() -> None:
    orders = random_orders(Keys.of(3, 4), 32)
    assert torch.equal(orders.sort(-1).values, torch.arange(32).expand(4, -1))
    assert len({tuple(order.tolist()) for order in orders}) == 4
    assert torch.equal(random_orders(Keys(Keys.of(3, 4).seeds[2:3]), 32)[0], orders[2])
    assert torch.equal(
        orders.gather(1, ranks(orders).gather(1, orders)), orders.gather(1, torch.arange(32).expand(4, -1))
    )


def test_every_position_is_as_likely_first() -> None:
    first = random_orders(Keys.of(0, 8000), 4)[:, 0].bincount(minlength=4).double()
    assert float(((first - 2000) ** 2 / 2000).sum()) < 25


def test_a_linear_scale_grows_with_the_number_of_known_tokens() -> None:
    steps, guidance = cosine_steps(16, 4), TokenGuidance(3.0, "linear")
    scales = guidance.by_rank(steps, 16)
    for step in steps:
        assert (scales[step.first : step.last] == 1 + 2 * (16 - step.masked) / 16).all()
    assert float(scales[0]) == 1 + 2 * 15 / 16  # the last step counts one token as masked
    assert (TokenGuidance(3.0, "constant").by_rank(steps, 16) == 3).all()
    assert TokenGuidance(0.5).paired and not TokenGuidance(1.0).paired


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((-1.0,), "guidance_scale: expected"),
        ((math.nan,), "guidance_scale"),
        ((2.0, "cosine"), "guidance_schedule: expected one of linear"),
    ],
)
def test_other_guidance_is_refused(given: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenGuidance(*given)
