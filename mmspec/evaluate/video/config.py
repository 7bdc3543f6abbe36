"""The settings of `mmspec bench video`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mmspec.evaluate.engine.config import option
from mmspec.evaluate.engine.drawn import LARGEST, DrawnBenchConfig, DrawnSetting
from mmspec.evaluate.engine.suite import Method
from mmspec.run.model_kinds import BLOCKS, VIDEO_MODELS, in_zoo, video_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSetting(DrawnSetting):
    blocks: int | None  # of each video, None for the pipeline's own number
    draws: int  # the seeds of every judged prompt
    calibration: int  # the number of videos on which routers are fitted
    model: str = "video"

    def judged_count(self) -> dict:
        return {"videos": self.prompts * self.draws}


@dataclass(frozen=True, kw_only=True)
class VideoBenchConfig(DrawnBenchConfig):
    """The settings of `mmspec bench video`; None takes the value of the suite."""

    about: ClassVar[str] = (
        "Videos: routed blocks against the target, the drafter and routers without a reward; and drafted codes. Measures "
        "time, the retained reward and truth, and seams."
    )
    setting: ClassVar[type[DrawnSetting]] = VideoSetting
    copied: ClassVar[tuple[str, ...]] = ("model", "seed", "blocks", "draws", "calibration")
    output: ClassVar[str] = "videos"
    judged_prompts_field: ClassVar[str] = "judged_prompts"
    judged_batch: ClassVar[int] = 1

    suite: str = option("speed", "speed, routers (at equal budget), threshold (a sweep) or tokens.")
    repeats: int = option(2, "Timed runs of every method on every prompt, each with its own seed.", least=1, most=1000)
    model: str | None = option(
        None, "The zoo's video or video/tokens, or a folder with a saved pipeline.", shown="NAME"
    )
    draft: str | None = option(
        None, "A folder with the smaller pipeline that drafts; the zoo's own when left out.", shown="FOLDER"
    )
    reward: str = option(
        "reward", "The scorer of frames: the zoo's reward or clip, or imagereward:FILE, hpsv2:FILE, pickscore:FILE."
    )
    blocks: int | None = option(None, "Blocks of every video; the pipeline's own when left out.", least=2, most=1 << 12)
    judged_prompts: int | None = option(None, "Held-out prompts whose videos are judged.", least=2, most=LARGEST)
    draws: int = option(2, "Seeds of every prompt that is judged.", least=1, most=64)
    calibration: int = option(16, "Held-out videos on which routers are fitted.", least=2, most=LARGEST)
    thresholds: tuple[float, ...] | None = option(
        None, "Fixed thresholds to run beside the suite's methods.", shown="T,T", least=float("-inf")
    )

    def __post_init__(self) -> None:
        from mmspec.run.rewards import check_reward

        suite = self.plan()
        if self.model is None:
            object.__setattr__(self, "model", suite.model)
        kind = video_kind(self.model)
        if kind != suite.kind:
            raise ValueError(
                f"--suite: expected a suite for a model of {kind} such as {self.model!r}, got {self.suite!r}, "
                "choose another suite or model"
            )
        check_reward(self.reward)
        self.refuse("draws blocks", kind != BLOCKS, "draft", "blocks", "thresholds")
        self.refuse("draws codes", kind == BLOCKS, "temperatures")
        if self.draft is not None and video_kind(self.draft, "--draft") != BLOCKS:
            raise ValueError(
                f"--draft: expected a folder with a saved pipeline of blocks, got {self.draft!r}, correct it"
            )
        super().__post_init__()

    def known(self) -> tuple[Method, ...]:
        drafted = self.draft is not None or in_zoo(f"{self.model}/draft")
        return tuple(row for row in self.plan().rows(self.thresholds or ()) if drafted or not row.part)

    def folders(self) -> list[Path]:
        return [Path(name) for name in (self.model, self.draft) if name is not None and name not in VIDEO_MODELS]


CONFIG = VideoBenchConfig
