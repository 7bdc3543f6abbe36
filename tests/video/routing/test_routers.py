"""What each router decides on scores that are given, and what its budget comes to."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
import torch

from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.keys import Keys
from mmspec.core.round.tree import chain
from mmspec.video import Explore, Hybrid, Learned, Random, Relative, Strided, Threshold
from mmspec.video.routing.learned import FEATURES, Advantage, AdvantageConfig, draft_features
from mmspec.video.routing.routers import BlockEvidence, BlockPosition, Router, TargetAlone
from tests.video.decoding.tiny import Told, pipeline, sdvg

NAN = math.nan


def decided(router: Router, rewards: list[float], anchors: list[float] | None = None, seed: int = 0) -> list[bool]:
    """Which rows' drafts stand, through weigh, select and resample."""
    rows = len(rewards)
    evidence = BlockEvidence(
        reward=torch.tensor([[NAN, reward] for reward in rewards]),
        anchor=torch.tensor(anchors or [NAN] * rows),
        run=torch.zeros(rows, dtype=torch.long),
        features=torch.zeros(rows, len(FEATURES)),
    )
    draft = Draft(torch.arange(2 * rows).view(rows, 2), chain(1), Law("none"))
    router.check(draft)
    router.check_evidence(evidence)
    weights = router.weigh(evidence, draft)
    keys = Keys.of(seed, rows)
    verdict = router.select(weights, keys.uniform(2, 2), draft)
    verdict = router.resample(evidence, draft, weights, verdict, keys)
    assert verdict.kind == "regenerate"
    return (~verdict.redo).tolist()


def test_a_threshold_accepts_scores_that_reach_it_and_rejects_nan() -> None:
    assert decided(Threshold(-0.7), [-0.71, -0.7, 3.0, NAN]) == [False, True, True, False]
    assert decided(Threshold(math.inf), [1e30, 0.0]) == [False, False]
    assert decided(Threshold(-math.inf), [-1e30, 0.0]) == [True, True]


def test_relative_to_the_first_block_a_hard_prompt_is_not_redrawn_throughout() -> None:
    rewards, anchors = [-2.0, -2.0, 1.0, 1.0, 0.0], [-1.9, -1.0, 1.1, 2.0, NAN]
    assert decided(Relative(0.5), rewards, anchors) == [True, False, True, False, False]
    assert decided(Threshold(-0.7), rewards) == [False, False, True, True, True]
    assert decided(Relative(-math.inf), rewards, anchors) == [False] * 5


@pytest.mark.parametrize("share", (0.0, 0.2, 0.5, 0.75, 1.0))
def test_a_quantile_threshold_accepts_the_calibrated_share_of_the_scores(share: float) -> None:
    drawn = torch.Generator().manual_seed(0)
    scores, anchors = torch.randn(2, 40, generator=drawn).tolist()
    assert sum(decided(Threshold.accepting(share, scores), scores)) == round(40 * share)
    kept = decided(Relative.accepting(share, scores, anchors), scores, anchors)
    assert abs(sum(kept) - 40 * share) <= 1  # differences are rounded once more
    assert Threshold.accepting(0, scores).exact and Relative.accepting(0, scores, anchors).exact


@pytest.mark.parametrize(
    "router",
    (
        Threshold(0.5),
        Threshold(-math.inf),
        Relative(0.1),
        Strided(2),
        Random([2, 3]),
        Explore(0.5),
        Explore(1.0),
        Hybrid(2, Threshold(0)),
        Learned(Advantage(AdvantageConfig())),
        Learned(Advantage(AdvantageConfig()), math.inf),
    ),
    ids=lambda router: router.name,
)
def test_routers_that_may_accept_a_draft_are_marked_as_relaxed(router: Router) -> None:
    assert not router.exact and "relaxed" in router.name


@pytest.mark.parametrize(
    "router",
    (
        Threshold(math.inf),
        Relative(-math.inf),
        Explore(0.0),
        Hybrid(0, Threshold(0)),
        Hybrid(3, Threshold(math.inf)),
        Learned(Advantage(AdvantageConfig()), -math.inf),
        TargetAlone(),
    ),
    ids=lambda router: type(router).__name__,
)
def test_each_router_has_a_setting_that_is_the_target_alone(router: Router) -> None:
    assert router.exact and "relaxed" not in router.name
    asked = router.drafts(BlockPosition(0, 3, 7, 1, 0, 0.99))
    assert not asked or not any(decided(router, [9.0, -9.0], [0.0, 0.0]))


def walk(router: Router, blocks: int, uniforms: list[float], row: int = 0) -> list[int]:
    """Blocks that are the target's where all that is drafted stands."""
    made: list[int] = []
    for block, uniform in enumerate(uniforms[:blocks]):
        run = block - made[-1] - 1 if made else 0
        if not router.drafts(BlockPosition(row, block, blocks, len(made), run, uniform)):
            made.append(block)
    return made


@pytest.mark.parametrize("blocks", (1, 5, 7, 40))
def test_budgets_are_kept_to_the_block(blocks: int) -> None:
    drawn = torch.Generator().manual_seed(0)
    for budget in {1, 2, 3, blocks}:
        wanted = min(budget, blocks)
        even = walk(Strided(budget), blocks, [0.0] * blocks)
        assert len(even) == wanted and even[0] == 0
        runs = [after - before - 1 for before, after in zip(even, [*even[1:], blocks], strict=True)]
        assert max(runs) - min(runs) <= 1  # as even as blocks can be
        for _ in range(20):
            at = walk(Random(budget), blocks, torch.rand(blocks, generator=drawn).tolist())
            assert len(at) == wanted and at[0] == 0
    assert len(walk(Random([1, 4]), 7, [0.5] * 7, row=1)) == 4 == len(walk(Strided([1, 4]), 7, [0.5] * 7, row=1))


def test_random_blocks_are_any_with_the_first_equally_often() -> None:
    drawn, count = torch.Generator().manual_seed(0), 6000
    found = Counter(tuple(walk(Random(3), 5, torch.rand(5, generator=drawn).tolist())) for _ in range(count))
    wanted = {(0, *rest) for rest in combinations(range(1, 5), 2)}
    assert set(found) == wanted
    chi = sum((found[entry] - count / 6) ** 2 / (count / 6) for entry in wanted)
    assert chi < 20.5  # 5 degrees of freedom, one in a thousand


def test_through_the_pipeline_strided_and_random_use_the_budget_another_router_used() -> None:
    prompts = ["a", "b"]
    reward = Told({"a": [1, -1, 1, 1], "b": [-1, -1, 1, -1]})
    used = pipeline()(prompts, seed=0, decoding=sdvg(reward)).stats.target_blocks
    assert used == [2, 4]
    for kind in (Strided, Random):
        stats = pipeline()(prompts, seed=0, decoding=sdvg(router=kind(used)), pixels=False).stats
        assert stats.target_blocks == used and stats.rule == f"{kind.__name__.lower()} 2, 4 (relaxed)"


def test_a_hybrid_bounds_the_run_of_drafts_and_redraws_low_scores_earlier() -> None:
    low, high = [-1.0] * 20, [1.0] * 20
    kept = {}
    for name, scores in (("high", high), ("low", low), ("once", [1.0, -1.0, *high])):
        hybrid = sdvg(Told({"a": list(scores)}), router=Hybrid(2, Threshold(0.0)))
        stats = pipeline(blocks=8)("a", seed=0, decoding=hybrid).stats
        kept[name] = [record.kept for record in stats.records[0]]
    assert kept["high"] == [False, True, True] * 2 + [False, True]
    assert kept["low"] == [False] * 8
    assert kept["once"] == [False, True, False, True, True, False, True, True]  # a veto begins a new run


def test_exploring_accepts_at_its_rate_whatever_the_score() -> None:
    kept = decided(Explore(0.3), [0.0] * 4000)
    assert abs(sum(kept) / 4000 - 0.3) < 0.03
    assert kept == decided(Explore(0.3), [5.0] * 4000)  # whatever the score


def test_relative_scores_the_first_block_and_every_first_under_a_new_prompt() -> None:
    reward = Told({"a": [5.0, 4.0, 1.0], "b": [0.0, -1.0]})
    stats = pipeline()("a", seed=0, decoding=sdvg(reward, router=Relative(2.0)), switch={3: "b"}).stats
    assert [record.kept for record in stats.records[0]] == [False, True, False, False, True]
    own = [record.own_scores for record in stats.records[0]]
    assert [scores and scores[0] for scores in own] == [5.0, None, None, 0.0, None]
    assert len(own[0]) == 3 and len(own[3]) == 4  # the film's first latent is one frame


def test_features_match_their_definitions() -> None:
    scores, anchor = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.5])
    still, moved = torch.zeros(1, 3, 2, 4, 4), torch.zeros(1, 3, 2, 4, 4)
    moved[:, :, 0], moved[:, :, 1] = 1.0, 3.0
    black, white = torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.full((2, 3, 8, 8), 255, dtype=torch.uint8)
    found = dict(
        zip(FEATURES, draft_features(scores, anchor, (still, moved), (black, white), 0.5, 2).tolist(), strict=True)
    )
    assert found == {
        "reward_min": 1,
        "reward_mean": 2,
        "reward_spread": 1,
        "reward_trend": 2,
        "below_anchor_min": 1,
        "below_anchor_mean": 0.25,
        "progress": 0.5,
        "run": 2,
        "latent_jump": 1,
        "latent_motion": 2,
        "pixel_jump": 1,
        "pixel_motion": 0,
    }


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Threshold(NAN), "threshold: expected a number"),
        (lambda: Relative(NAN), "margin: expected a number"),
        (lambda: Threshold.accepting(1.5, [0.0]), "share: expected 0 to 1"),
        (lambda: Threshold.accepting(0.5, []), "scores: expected finite numbers"),
        (lambda: Threshold.accepting(0.5, [NAN]), "scores: expected finite numbers"),
        (lambda: Strided(0), "budget: expected 1 or more"),
        (lambda: Random([3, 0]), "budget: expected 1 or more"),
        (lambda: Random([]), "budget: expected 1 or more"),
        (lambda: Hybrid(-1, Threshold(0)), "run: expected 0 or more"),
        (lambda: Explore(1.1), "rate: expected a number from 0 to 1"),
        (lambda: Learned(Advantage(AdvantageConfig()), NAN), "gain: expected a number"),
    ],
)
def test_settings_out_of_range_are_refused(make, told: str) -> None:  # noqa: ANN001
    with pytest.raises(ValueError, match=told):
        make()
