"""Quality of a method's videos, compared with the target's on the same prompts and seeds, and at equal budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mmspec.evaluate.engine.statistics import interval
from mmspec.evaluate.video.calibration import motion_prompts
from mmspec.evaluate.video.config import VideoBenchConfig, VideoSetting
from mmspec.evaluate.video.figures import accepted_blocks, draw, video_shape
from mmspec.evaluate.video.suites import VideoMethod
from mmspec.run.decoding_options import PLAIN
from mmspec.run.video_models import PipelineCall, VideoResources
from mmspec.zoo.world.scene import SHAPES
from mmspec.zoo.world.tracking import agreement, direction_of, shape_of, track
from mmspec.zoo.world.video_prompts import named_movers

if TYPE_CHECKING:
    from mmspec.video.rewards.scores import Reward

FIELDS = (
    "videos", "reward", "reward_retention", "reward_retention_interval", "reward_difference_interval", "truth",
    "truth_retention", "truth_retention_interval", "colour", "direction", "shape", "seam",
)  # fmt: skip
QUALITY = (
    "videos of the same prompts and seeds; reward: mean over all frames of a video; truth: colour, direction and shape that "
    "a prompt names, read off the frames without a model: the share of frames that show the colour, of objects that go "
    "that way at first, of shapes that are the right ones; retention: mean over the target alone's mean; seam: mean change "
    "of pixels across block boundaries over that from frame to frame inside blocks; intervals: 90 %, prompts resampled with "
    "all their seeds; above strided and above random: mean difference to a router that redraws as many blocks of each video"
)

_AT_ONCE = 8  # videos drawn together; each row has its own routing and seed
Figures = tuple[float, ...]  # the figures of a video, in the order of the first fields of `VideoFigures`


@dataclass(frozen=True, slots=True)
class VideoFigures:
    """Figures of videos by prompt and seed: float [prompts, draws], NaN where there is nothing to measure."""

    reward: np.ndarray  # the mean reward of the frames
    truth: np.ndarray  # the `agreement`, composed of colour, direction and shape
    seam: np.ndarray  # see `seam`
    colour: np.ndarray  # the share of frames that show it
    direction: np.ndarray  # whether objects move in the right direction
    shape: np.ndarray  # whether shapes are right
    records: list[list[Any]]  # of every block, by video
    exact: bool

    @property
    def redrawn(self) -> list[int]:
        """Return the number of blocks of each video without an accepted draft."""
        return [sum(not block.kept for block in row) for row in self.records]


class VideoReference:
    """The target's videos in a setting; `row` has their figures."""

    def __init__(self, config: VideoBenchConfig, resources: VideoResources, setting: VideoSetting):
        self.resources, self.setting = resources, setting
        prompts = motion_prompts(setting.prompts, setting.seed)
        self.videos = [
            (prompt, setting.seed + number + draw * setting.prompts)
            for number, prompt in enumerate(prompts)
            for draw in range(setting.draws)
        ]
        self._budgeted: dict[tuple, Figures] = {}
        self.plain = self._shown(config.rows[0].make(resources, setting))
        own = {f"{name}_ar": _mean(getattr(self.plain, name)) for name in ("reward", "truth", "seam")}
        self.row = {**video_shape(resources, setting), **own}

    def judge(self, method: VideoMethod) -> dict:
        """Return the figures of a method's videos. For routing by scores, they include the difference from routers
        without scores that have the same number of target blocks in every video."""
        way = method.make(self.resources, self.setting)
        own, target = self.plain if method.key == PLAIN else self._shown(way), way.pipeline is self.resources.pipeline
        blocks = sum(map(len, own.records))
        redrawn = sum(own.redrawn) if target else 0
        return {
            "exact": own.exact and target,
            "target_passes": round(redrawn / len(own.records), 2),
            "accept_length": round(blocks / max(redrawn, 1), 3),
            **accepted_blocks([[entry.kept for entry in row] for row in own.records], target),
            **_figures(own, self.plain),
            **self._at_equal_budget(way, own),
        }

    def _at_equal_budget(self, way: PipelineCall, own: VideoFigures) -> dict:
        """Return the mean differences from routers without scores, and their intervals."""
        from mmspec.video.routing.budgets import Random, Strided

        decoding, row = way.arguments.get("decoding"), {}
        routed = decoding is not None and decoding.needs.reward
        for name, router in (("strided", Strided), ("random", Random)):
            other = self._at_budgets(decoding, router, own.redrawn) if routed else None
            for figure, column in (("reward", 0), ("truth", 1)):
                apart = None if other is None else getattr(own, figure) - other[..., column]
                row[f"{figure}_above_{name}"] = None if other is None else _mean(apart)
                row[f"{figure}_above_{name}_interval"] = None if other is None else _interval(apart)
        return row

    def _at_budgets(self, decoding: Any, router: type, budgets: Sequence[int]) -> np.ndarray:
        """Return the figures [prompts, draws, K] of the same videos under a router without a reward. Each video has its
        own budget, and no video is drawn twice with the same budget."""
        keys = [(router, decoding.sync, place, budget) for place, budget in enumerate(budgets)]
        for budget in sorted(set(budgets)):
            missing = [key for key in keys if key[-1] == budget and key not in self._budgeted]
            blind = replace(decoding, reward=None, threshold=None, router=router(budget))
            drawn = self._drawn(
                PipelineCall(self.resources.pipeline, {"decoding": blind}), [place for *_, place, _ in missing]
            )
            self._budgeted |= {key: one for key, (one, _, _) in zip(missing, drawn, strict=True)}
        return self._table([self._budgeted[key] for key in keys])

    def _shown(self, way: PipelineCall) -> VideoFigures:
        figures, records, exact = zip(*self._drawn(way, range(len(self.videos))), strict=True)
        return VideoFigures(*np.moveaxis(self._table(figures), -1, 0), list(records), all(exact))

    def _drawn(self, way: PipelineCall, places: Sequence[int]) -> Iterator[tuple[Figures, list[Any], bool]]:
        """Draw and measure videos in groups; yield figures, block records, and whether the output is exact."""
        for first in range(0, len(places), _AT_ONCE):
            prompts, seeds = zip(*(self.videos[place] for place in places[first : first + _AT_ONCE]), strict=True)
            out = draw(way, prompts, self.setting, list(seeds))
            for prompt, video, records in zip(prompts, out.videos, out.stats.records, strict=True):
                yield measure_video(video, prompt.text, self.resources.reward(), way.pipeline), records, out.stats.exact

    def _table(self, figures: Sequence[Figures]) -> np.ndarray:
        return np.array(figures).reshape(self.setting.prompts, self.setting.draws, -1)


def measure_video(frames: np.ndarray, text: str, reward: Reward, pipe: Any) -> Figures:
    """Return the figures of a video uint8 [N, H, W, 3]. Truth and its parts are NaN for a prompt that names no object
    or no shape. Seam is NaN for a single block, or where nothing moves."""
    from mmspec.video.rewards.scores import scored

    scores = scored(reward, torch.from_numpy(frames).permute(0, 3, 1, 2), text)
    named = named_movers(text)
    truth = agreement(frames, named) if named else float("nan")
    return float(scores.mean()), truth, seam(frames, boundaries(pipe, len(frames))), *prompt_agreement(frames, named)


def prompt_agreement(frames: np.ndarray, named: Sequence[tuple[str, str, str]]) -> tuple[float, float, float]:
    """Return how far a video shows the objects that its prompt names, as means over the objects: the share of frames
    that show the colour, whether the first motion has the right direction, and whether the shape is right (digits left
    out)."""
    colours, directions, shapes = [], [], []
    for kind, colour, direction in named:
        seen = track(frames, colour)
        colours.append(float(seen.seen.mean()))
        directions.append(float(direction_of(seen) == direction))
        shapes += [float(shape_of(seen) == kind)] if kind in SHAPES else []
    return tuple(float(np.mean(marks)) if marks else float("nan") for marks in (colours, directions, shapes))


def boundaries(pipe: Any, frames: int) -> list[int]:
    """Return the first pixel frame of every block but the first."""
    each, plan, starts = pipe.vae.layout.frames, pipe.model.plan, []
    while (first := plan.shown(len(starts) + 1, each)) < frames:
        starts.append(first)
    return starts


def seam(frames: np.ndarray, starts: Sequence[int]) -> float:
    """Return the mean change of pixels of frames uint8 [N, H, W, 3] at the first frame of each block in `starts` over
    that at all other frames. It is 1 where boundaries are invisible, and NaN without a boundary or without any other
    change."""
    steps = np.abs(np.diff(frames.astype(np.float32), axis=0)).mean((1, 2, 3))
    across = np.zeros(len(steps), dtype=bool)
    across[[start - 1 for start in starts]] = True
    inside = steps[~across].mean() if (~across).any() else 0.0
    return float(steps[across].mean() / inside) if across.any() and inside > 0 else float("nan")


def _figures(own: VideoFigures, plain: VideoFigures) -> dict:
    return {
        "reward": _mean(own.reward),
        **_retention("reward", own.reward, plain.reward),
        "reward_difference_interval": _interval(own.reward - plain.reward),
        "truth": _mean(own.truth),
        **_retention("truth", own.truth, plain.truth),
        **{name: _mean(getattr(own, name)) for name in ("colour", "direction", "shape", "seam")},
    }


def _retention(name: str, own: np.ndarray, plain: np.ndarray) -> dict:
    """Return own's mean over plain's with its interval; None unless plain's mean is above 0."""
    pairs = [np.stack(both, -1)[~np.isnan(both[0])] for both in zip(own, plain, strict=True)]

    def ratio(rows: np.ndarray) -> float:
        return rows[:, 0].mean() / rows[:, 1].mean() if rows[:, 1].mean() > 0 else float("nan")

    pairs = [pair for pair in pairs if len(pair)]
    known = bool(pairs) and np.concatenate(pairs)[:, 1].mean() > 0
    return {
        f"{name}_retention": round(float(ratio(np.concatenate(pairs))), 4) if known else None,
        f"{name}_retention_interval": interval(pairs, ratio) if known else None,
    }


def _mean(values: np.ndarray) -> float | None:
    return None if np.isnan(values).all() else round(float(np.nanmean(values)), 4)


def _interval(values: np.ndarray) -> list[float] | None:
    groups = [row[~np.isnan(row)] for row in values]
    return interval([group for group in groups if len(group)], lambda values: float(values.mean()))
