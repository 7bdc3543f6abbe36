"""`mmspec bench video` on random tiny models: rows, budgets, retention, seams, predictions, and what is refused."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.domain import bench_failures
from mmspec.evaluate.engine.rows import FIELDS
from mmspec.evaluate.report.bench_page import markdown
from mmspec.evaluate.report.plots import draw
from mmspec.evaluate.video import quality
from mmspec.evaluate.video.calibration import CALIBRATION, motion_prompts, router_calibration
from mmspec.evaluate.video.config import VideoBenchConfig
from mmspec.evaluate.video.domain import DOMAIN
from mmspec.evaluate.video.figures import VideoPassCosts, pass_costs, predicted_seconds
from mmspec.evaluate.video.page import COLUMNS
from mmspec.evaluate.video.suites import SUITES
from mmspec.run.video_models import PipelineCall, open_video
from mmspec.zoo.world.video import render_frames, sample_video_scene
from mmspec.zoo.world.video_prompts import video_prompt
from tests.evaluate.tiny_video import BLOCKS, saved, tiny_video_zoo, use_tiny_video

TIMED = {*FIELDS, "vae_share", "reward_share", "other_share", "acceptance", "accepted_share", "target_blocks",
         "target_forwards", "context_forwards", "drafter_passes", "latency_p50", "latency_p95", "predicted_seconds",
         "prediction_ratio", "speedup_interval", "identical", "blocks", "parameter_ratio"}  # fmt: skip
SPEED = ("sdvg-none", "sdvg-all", "sdvg-0.5", "sdvg-eager-0.75", "sdvg-rebuilt-0.75", "strided", "learned", "hybrid")


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_video(patch)
        yield


def run(**settings: object) -> dict:
    told: list[str] = []
    config = VideoBenchConfig(threads=1, calibration=10, **settings)
    result = bench(DOMAIN, config, on_run=told.append)
    assert len(told) == config.requests() and bench_failures(DOMAIN, result) == []
    assert json.loads(json.dumps(result, allow_nan=False))["rows"] == result["rows"]
    return result


def rows_of(result: dict) -> dict[str, dict]:
    return {row["key"]: row for row in result["rows"]}


@pytest.fixture(scope="module")
def speed() -> dict:
    return run(prompts=2, batches=(2,), repeats=1, methods=("draft", *SPEED), thresholds=(0.57,))


@pytest.fixture(scope="module")
def judged() -> dict:
    return run(suite="routers", judged_prompts=2, draws=2, methods=("draft", "sdvg-all", "relative-0.5", "strided-0.5"))


def test_every_timed_row_has_the_shared_fields_and_its_own(speed: dict) -> None:
    for row in speed["rows"]:
        assert row.keys() >= TIMED and not row["failed"] and row["tokens"] == BLOCKS and row["seconds"] > 0
        shares = [row[f"{part}_share"] for part in ("draft", "target", "verify", "vae", "reward", "other")]
        assert sum(shares) == pytest.approx(1, abs=1e-3)
        assert row["acceptance"] is not None and 0 < row["latency_p50"] <= row["latency_p95"]
        assert row["target_blocks"] == pytest.approx(BLOCKS - sum(row["acceptance"]), abs=1e-3)


def test_methods_that_accept_no_draft_match_the_target_bit_for_bit(speed: dict) -> None:
    rows = rows_of(speed)
    held = {key for key, row in rows.items() if row["identical"] is not None}
    assert held == {"ar", "sdvg-none"} and {rows[key]["identical"] for key in held} == {"1/1"}
    assert {key for key, row in rows.items() if row["exact"]} == held


def test_blocks_are_counted_by_who_drew_them(speed: dict) -> None:
    rows = rows_of(speed)
    assert rows["ar"]["target_blocks"] == BLOCKS and rows["ar"]["drafter_passes"] == 0
    assert rows["sdvg-all"]["target_blocks"] == 1 and rows["sdvg-all"]["acceptance"] == [0, 1, 1, 1]
    alone = rows["draft"]
    assert (alone["target_blocks"], alone["target_forwards"], alone["target_share"]) == (0, 0, 0)
    assert alone["drafter_passes"] == rows["ar"]["target_forwards"] and alone["draft_share"] > 0.1
    assert rows["sdvg-eager-0.75"]["context_forwards"] >= rows["sdvg-0.5"]["context_forwards"]
    assert rows["strided-0.75"]["target_blocks"] == 2 and rows["strided-0.75"]["reward_share"] == 0


def test_the_prediction_counts_the_actual_passes(speed: dict) -> None:
    price = VideoPassCosts(target=1.0, drafter=0.0, decode=0.0, reward=0.0)
    (setting,) = VideoBenchConfig(prompts=2, batches=(2,), calibration=10).settings()
    resources = open_video("video")
    (asked,) = DOMAIN.cases(resources, setting)
    for method in (
        method for method in SUITES["speed"].methods if method.key in ("ar", "sdvg-all", "strided-0.75", "sdvg-0.5")
    ):
        made = DOMAIN.runner(method, resources, setting)(asked, 0)
        assert predicted_seconds(made, price) == made.more["target_forwards"]
        drafts = VideoPassCosts(target=0.0, drafter=1.0, decode=0.0, reward=0.0)
        assert predicted_seconds(made, drafts) == made.drafter_passes
    # without the drafter alone its passes in drafted requests are priced
    assert pass_costs([], [], [made]).drafter == made.parts["draft"] / made.drafter_passes > 0
    assert all(row["prediction_ratio"] > 0.5 for row in speed["rows"])


def test_judged_rows_report_the_retained_reward(judged: dict) -> None:
    rows = rows_of(judged)
    assert rows["ar"]["reward_retention"] == 1 and rows["ar"]["reward_retention_interval"] == [1, 1]
    for row in rows.values():
        low, high = row["reward_retention_interval"]
        assert low <= row["reward_retention"] <= high and row["videos"] == 4 and row["seam"] > 0
        assert {"colour", "direction", "shape"} <= row.keys()
        routed = row["key"].startswith(("sdvg", "relative"))
        assert (row["reward_above_strided_interval"] is not None) == routed
    assert rows["draft"]["reward"] != rows["ar"]["reward"] and rows["draft"]["target_blocks"] == 0
    # at one target block even distances are the same videos
    assert rows["sdvg-all"]["reward_above_strided"] == rows["sdvg-all"]["reward_above_random"] == 0


@pytest.mark.whole
def test_blind_routers_get_the_budget_of_every_single_video(monkeypatch: pytest.MonkeyPatch) -> None:
    config = VideoBenchConfig(suite="routers", judged_prompts=3, draws=1, calibration=10, methods=("mean-0.5",))
    (setting,) = config.judged()
    used: dict[str, dict[int, int]] = defaultdict(dict)  # of a rule: target blocks of a seed's video
    drawn, whole = Counter(), quality.draw

    def watched(way: PipelineCall, asked: Sequence[object], setting: object, seed: Sequence[int]):
        out = whole(way, asked, setting, seed)
        rule = out.stats.rule.split()[0]
        used[rule] |= dict(zip(seed, out.stats.target_blocks, strict=True))
        drawn[rule] += len(asked)
        return out

    monkeypatch.setattr(quality, "draw", watched)
    reference = quality.VideoReference(config, open_video("video"), setting)
    method = next(row for row in config.rows if row.key == "mean-0.5")
    reference.judge(method)
    assert drawn == {"exact": 3, "reward": 3, "strided": 3, "random": 3}
    assert used["reward"] == used["strided"] == used["random"] and len(set(used["reward"].values())) > 1
    reference.judge(method)
    assert drawn == {"exact": 3, "reward": 6, "strided": 3, "random": 3}  # videos at a budget are drawn once


def test_the_truth_of_rendered_scenes_is_nearly_whole_and_of_others_not() -> None:
    def bright(frames: torch.Tensor, prompt: str) -> torch.Tensor:
        return torch.ones(len(frames))

    scenes = [sample_video_scene((1 << 31) + i) for i in range(12)]
    texts = [video_prompt(scene, 0) for scene in scenes]
    frames = [render_frames(scene, 12) for scene in scenes]
    pipe = tiny_video_zoo()["video"]
    own = [quality.measure_video(video, text, bright, pipe)[1] for video, text in zip(frames, texts, strict=True)]
    other = [
        quality.measure_video(video, text, bright, pipe)[1] for video, text in zip(frames, texts[1:], strict=False)
    ]
    assert np.mean(own) > 0.9 > 0.5 > np.mean(other)
    parts = np.array(
        [quality.measure_video(video, text, bright, pipe)[3:] for video, text in zip(frames, texts, strict=True)]
    )
    assert (np.nanmean(parts, 0) > 0.85).all() and np.isnan(parts[:, 2]).any()  # digits have no shape to be told by
    assert np.isnan(quality.measure_video(frames[0], "nothing at all", bright, pipe)[3:]).all()


def test_a_seam_is_a_jump_across_a_boundary() -> None:
    smooth = np.arange(12, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 3), np.uint8)
    jumps = smooth + 20 * (np.arange(12) >= 3)[:, None, None, None].astype(np.uint8)
    assert quality.seam(smooth, [3, 7]) == 1 and quality.seam(jumps, [3]) == 21 and quality.seam(jumps, [7]) < 1
    assert math.isnan(quality.seam(smooth, [])) and math.isnan(quality.seam(smooth * 0, [3]))


def test_boundaries_are_where_blocks_begin() -> None:
    pipe, begun = tiny_video_zoo()["video"], []
    out = pipe("a", seed=0, listener=lambda row, block, frames: begun.append(len(frames)))
    starts = np.cumsum(begun)[:-1].tolist()
    assert quality.boundaries(pipe, len(out.videos[0])) == starts and len(starts) == BLOCKS - 1


def test_routers_are_fitted_on_other_prompts() -> None:
    measured = {prompt.text for seed in (0, 1) for prompt in motion_prompts(64, seed)}
    assert not measured & {prompt.text for prompt in motion_prompts(16, 0, CALIBRATION)}
    (setting,) = VideoBenchConfig(calibration=10).settings()
    found = router_calibration(open_video("video"), setting)
    scores, anchors = found.scores()
    assert len(scores) == len(anchors) == 10 * (BLOCKS - 1)
    by_video = [set(anchors[first : first + BLOCKS - 1]) for first in range(0, len(anchors), BLOCKS - 1)]
    assert all(len(video) == 1 for video in by_video) and len(set.union(*by_video)) > 5  # two videos may score the same
    model = found.advantage()
    assert found.gain(model, 0) == -math.inf and found.gain(model, 0.2) <= found.gain(model, 0.9)


@pytest.mark.whole
def test_a_sweep_makes_a_curve(tmp_path: Path) -> None:
    result = run(
        suite="threshold", prompts=1, repeats=1, judged_prompts=2, draws=1, methods=("sdvg-0.5", "sdvg-0.9", "strided")
    )
    rows = rows_of(result)
    assert rows["sdvg-0.9"]["reward_retention"] is not None and rows["sdvg-0.9"]["speedup_vs_ar"] is not None
    reward, _ = panels = DOMAIN.panels(result)
    assert len(reward.lines["sdvg"][0]) == 2 and len(reward.lines["strided"][0]) == 2
    draw(panels, tmp_path / "curve.png")
    text = markdown(DOMAIN.page(result), result)
    assert "2 videos a figure" in text and "fastest relaxed method" in text
    with pytest.raises(ValueError, match="expected a suite with a curve, got 'speed'"):
        DOMAIN.panels({"env": {"suite": "speed"}, "rows": []})


def test_codes_are_drafted_exactly_in_fewer_passes() -> None:
    result = run(suite="tokens", prompts=2, repeats=1, methods=("sjd-16", "scd-32", "scd-maximal"))
    rows = rows_of(result)
    assert all(row["exact"] and row["tokens"] == 12 for row in rows.values()) and rows["ar"]["fewer_passes"] == 1
    assert rows["scd-32"]["fewer_passes"] > 1 and 0 < rows["ar"]["top1_probability"] < 1
    assert result["env"]["model"] == "zoo video/tokens" and "12 codes in 3 frames" in markdown(
        DOMAIN.page(result), result
    )


def test_folders_are_benched(tmp_path: Path) -> None:
    big, small = saved(tmp_path / "big"), saved(tmp_path / "small", 1)
    assert [row.key for row in VideoBenchConfig(model=str(big)).rows] == ["ar"]
    config = dict(model=str(big), draft=str(small), blocks=3, prompts=1, repeats=1)
    result = run(methods=("strided",), **config)
    assert rows_of(result)["strided-0.75"]["blocks"] == 3 and VideoBenchConfig(**config).folders() == [big, small]
    tiny_video_zoo()["video/tokens"].save_pretrained(tmp_path / "codes")
    assert open_video(str(tmp_path / "codes")).kind == "codes"
    with pytest.raises(ValueError, match="--draft: expected a folder with a saved pipeline of blocks"):
        VideoBenchConfig(model=str(big), draft=str(tmp_path / "codes"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"suite": "magic"},
        {"model": "t2i"},
        {"model": "video/tokens"},
        {"suite": "tokens", "model": "video"},
        {"suite": "tokens", "blocks": 4},
        {"suite": "tokens", "draft": "here"},
        {"suite": "tokens", "thresholds": (0.5,)},
        {"suite": "speed", "judged_prompts": 8},
        {"suite": "routers", "prompts": 8},
        {"suite": "routers", "batches": (1,)},
        {"temperatures": (0.0,)},
        {"reward": "magic"},
        {"thresholds": (math.nan,)},
        {"draft": "nowhere"},
        {"blocks": 1},
        {"methods": ("scd",)},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="expected .*, got .*, "):
        VideoBenchConfig(**wrong)


def test_models_without_weights_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.names", lambda: ["t2i"])
    with pytest.raises(ValueError, match="--model: expected weights of the zoo's video, got none yet, run `mmspec zoo"):
        DOMAIN.resources(VideoBenchConfig())
    assert [row.key for row in VideoBenchConfig().rows] == ["ar"]


def test_suites_name_columns_and_methods_once() -> None:
    for suite in SUITES.values():
        keys = [method.key for method in suite.methods]
        assert len(set(keys)) == len(keys) and keys[0] == "ar" and set(suite.columns) <= set(COLUMNS)
