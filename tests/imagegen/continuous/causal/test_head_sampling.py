"""A causal model whose head drafts its own steps: the same law of every token, with a drafter of tokens and without."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmspec.imagegen import ContinuousARPipeline
from mmspec.imagegen.continuous.causal.causal_drafter import SmallCausal
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling
from mmspec.imagegen.continuous.schedules.step_annealing import Annealing
from tests.imagegen.continuous.causal.test_causal import ONE, distance, model, near_model

ROWS, STEPS = 4000, 8
LONG = replace(ONE, head_steps=STEPS)


def tokens(seed: int, head: str, **how) -> tuple[torch.Tensor, float]:
    """Tokens [R, 4] and how many drafted ones stood a row."""
    run = ContinuousARPipeline(model(replace(LONG, head=head))).start([1] * ROWS, seed=seed, **how)
    run.run()
    return run.target.values[..., 0], sum(n or 0 for round in run.stats.accepted for n in round) / ROWS


def most_apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest Kolmogorov-Smirnov distance of tokens and of sums and differences of neighbours, by its 0.1 % point."""
    made = [(one[:, i], other[:, i]) for i in range(one.shape[1])]
    for sign in (-1, 1):
        made += [(one[:, i] + sign * one[:, i - 1], other[:, i] + sign * other[:, i - 1]) for i in range(1, 4)]
    return max(distance(*pair) for pair in made) / (1.95 * (2 / ROWS) ** 0.5)


@pytest.mark.parametrize(("head", "scale"), [("sde", 1.0), ("diffusion", 2.0)])
def test_speculation_over_head_time_keeps_the_distribution(head: str, scale: float) -> None:
    plain, _ = tokens(1, head, guidance_scale=scale)
    ahead, _ = tokens(2, head, guidance_scale=scale, head_sampling=HeadSampling(4))
    assert most_apart(ahead, plain) < 1.2


@pytest.mark.parametrize("rule", ("gaussian_block", "reflection"))
def test_tokens_and_steps_are_drafted_at_once(rule: str) -> None:
    plain, _ = tokens(1, "sde")
    small = model(LONG)
    small.load_state_dict(near_model(3).model.state_dict())
    ahead, stood = tokens(2, "sde", decoding=SmallCausal(small, 3), rule=rule, head_sampling=HeadSampling(4))
    assert most_apart(ahead, plain) < 1.2 and stood > 0.5


def test_a_window_of_1_matches_plain_head_sampling() -> None:
    assert torch.equal(tokens(1, "sde", head_sampling=HeadSampling(1))[0], tokens(1, "sde")[0])


def test_annealing_is_refused() -> None:
    with pytest.raises(ValueError, match="head_sampling: expected the same number of steps for every token"):
        tokens(1, "sde", head_sampling=HeadSampling(annealing=Annealing()))
