"""Requests by category: unlike each other, of the category alone, and accept length by depth."""

from __future__ import annotations

import pytest
import torch

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.report.bench_page import markdown
from mmspec.evaluate.vlm.categories import (
    CATEGORIES,
    POOL,
    accept_by_depth,
    features_of,
    picked,
    random_words,
    spread_out,
)
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.domain import DOMAIN
from mmspec.evaluate.vlm.requests import held_out, questions
from mmspec.run.timed_run import TimedRun
from tests.evaluate.tiny_zoo import use_tiny_zoo

BY_NAME = {task.name: task for task in CATEGORIES}


def likeness(features: torch.Tensor) -> float:
    """The mean similarity of different rows."""
    similar = features @ features.T
    return float((similar.sum() - similar.trace()) / (len(features) * (len(features) - 1)))


def test_picked_requests_are_less_alike_than_random_ones() -> None:
    pool = questions(POOL * 5)
    features = features_of(pool)
    assert torch.allclose(features.norm(dim=-1), torch.ones(len(pool)))
    chosen = spread_out(features, 5)
    assert len(set(chosen)) == 5
    generator = torch.Generator().manual_seed(0)
    others = [likeness(features[torch.randperm(len(pool), generator=generator)[:5]]) for _ in range(50)]
    assert likeness(features[chosen]) < sorted(others)[2] < sum(others) / 50


def test_all_rows_are_picked_where_there_are_no_more() -> None:
    assert sorted(spread_out(torch.eye(3), 5)) == [0, 1, 2]


@pytest.mark.whole
def test_a_category_has_its_own_requests_alone() -> None:
    counting, asked = (BY_NAME[name].make(3, 1) for name in ("counting", "question"))
    assert all(prompt.text.lower().startswith("how many") for prompt in counting) and len(counting) == 3
    assert not any(prompt.text.lower().startswith("how many") for prompt in asked)
    assert all(len(prompt.images) == 1 for prompt in picked(held_out, lambda prompt: len(prompt.images) == 1, 3))
    assert [prompt.text for prompt in counting] == [prompt.text for prompt in BY_NAME["counting"].make(3, 1)]


def test_the_control_is_random_words_on_noise() -> None:
    first, second = random_words(2, 3)
    assert first.text != second.text and len(first.text.split()) == 24
    assert first.images[0].tobytes() != second.images[0].tobytes()
    assert not BY_NAME["random words"].natural


def test_shares_by_depth_sum_to_the_mean_accepted_values() -> None:
    accepted = ((0, 0), (2, 1), (0, None), (3, 0))
    run = TimedRun(1.0, ((1,), (1,)), 4, 2.0, accepted=accepted)
    assert accept_by_depth([run]) == [0.6, 0.4, 0.2]
    assert accept_by_depth([TimedRun(1.0, ((1,),), 1, 1.0)]) is None


@pytest.mark.whole
def test_the_suite_shows_the_depths_of_every_category(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)
    config = VlmBenchConfig(
        suite="categories", prompts=1, new_tokens=6, temperatures=(0.0,), methods=("eagle", "lookup")
    )
    result = bench(DOMAIN, config)
    drafted = [row for row in result["rows"] if row["key"] == "eagle"]
    assert {row["task"] for row in drafted} == set(BY_NAME) and not any(row["failed"] for row in drafted)
    for row in drafted:
        profile = row["accept_by_depth"]
        assert profile == sorted(profile, reverse=True)
        # the prefill emits a value without a draft
        passes = row["target_passes"]
        assert (1 + sum(profile)) * (passes - 1) + 1 == pytest.approx(row["accept_length"] * passes, abs=0.1)
    assert "accept by depth" in markdown(DOMAIN.page(result), result)
