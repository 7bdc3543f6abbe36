"""What `mmspec bench video` can be asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mmspec.evaluate.engine.config import BenchConfig, option
from mmspec.evaluate.engine.suite import Setting
from mmspec.evaluate.model_kinds import BLOCKS, VIDEO_MODELS, has_zoo_weights, video_kind

if TYPE_CHECKING:
    from mmspec.evaluate.video.methods import VideoMethod

LARGEST = 1 << 12  # prompts a seed has


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSetting(Setting):
    """How videos are drawn.   blocks: of each, None for the pipeline's own.   draws: seeds of every prompt that is judged.
    calibration: videos that routers are fitted on.   model: as `VideoBenchConfig` has it.   judged: what videos show is measured, not
    the time they take.
    """

    blocks: int | None
    draws: int
    calibration: int
    model: str = "video"
    judged: bool = False

    def row(self) -> dict:
        count = {"videos": self.prompts * self.draws} if self.judged else {"prompts": self.cases * self.batch}
        return {"model": self.model, **self.name(), **count, "seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class VideoBenchConfig(BenchConfig):
    """What to run; None takes what the suite says.

    model, draft: of the zoo, or folders; draft None for the zoo's own.   judged_prompts: of every figure of what videos show.
    """

    about: ClassVar[str] = (
        "Videos: routed blocks against the target, the drafter and routers without a reward; and drafted codes. Seconds, "
        "what of the reward and of the truth is kept, seams."
    )

    suite: str = option("speed", "speed, routers (at equal budget), threshold (a sweep) or tokens.")
    prompts: int | None = option(None, "Held-out prompts that are timed.", least=1, most=LARGEST)
    batches: tuple[int, ...] | None = option(None, "Batch sizes that are timed.", flag="--batch", shown="N,N", least=1)
    repeats: int = option(
        2, "Timed runs of every method on every prompt, each of a seed of its own.", least=1, most=1000
    )
    model: str | None = option(
        None, "The zoo's video or video/tokens, or a folder with a saved pipeline.", shown="NAME"
    )
    draft: str | None = option(
        None, "A folder with the smaller pipeline that drafts; the zoo's own when left out.", shown="FOLDER"
    )
    reward: str = option(
        "reward", "What scores frames: the zoo's reward or clip, or imagereward:FILE, hpsv2:FILE, pickscore:FILE."
    )
    blocks: int | None = option(None, "Blocks of every video; the pipeline's own when left out.", least=2, most=1 << 12)
    judged_prompts: int | None = option(None, "Held-out prompts whose videos are judged.", least=2, most=LARGEST)
    draws: int = option(2, "Seeds of every prompt that is judged.", least=1, most=64)
    calibration: int = option(16, "Videos, none of them measured, that routers are fitted on.", least=2, most=LARGEST)
    thresholds: tuple[float, ...] | None = option(
        None, "Fixed thresholds to run beside the suite's methods.", shown="T,T", least=float("-inf")
    )

    def __post_init__(self) -> None:
        from mmspec.evaluate.quality.rewards import check_reward

        suite = self.plan()
        if self.model is None:
            object.__setattr__(self, "model", suite.model)
        kind = video_kind(self.model)
        if kind != suite.kind:
            raise ValueError(f"--suite: expected one for a model of {kind} such as {self.model!r}, got {self.suite!r}, take "
                             "another suite or model")  # fmt: skip
        check_reward(self.reward)
        self._refuse("times requests", not suite.timed, {"prompts": self.prompts, "batch": self.batches})
        given = {"draft": self.draft, "blocks": self.blocks, "thresholds": self.thresholds}
        self._refuse("judges videos", not suite.judged, {"judged_prompts": self.judged_prompts})
        self._refuse("draws blocks", kind != BLOCKS, given)
        self._refuse("draws codes", kind == BLOCKS, {"temperature": self.temperatures})
        if self.draft is not None and video_kind(self.draft, "--draft") != BLOCKS:
            raise ValueError(
                f"--draft: expected a folder with a saved pipeline of blocks, got {self.draft!r}, correct it"
            )
        super().__post_init__()

    def _refuse(self, what: str, idle: bool, given: dict) -> None:
        """Raises ValueError for options of what the suite does not do."""
        for name, value in given.items():
            if idle and value is not None:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag}: expected a suite that {what}, got {self.suite!r}, leave {flag} out")

    def known(self) -> tuple[VideoMethod, ...]:
        from mmspec.evaluate.video.suites import at_threshold

        kind = video_kind(self.model)
        drafted = self.draft is not None or has_zoo_weights(f"{self.model}/draft")
        methods = (*self.plan().methods, *map(at_threshold, self.thresholds or ()))
        return tuple(one for one in methods if one.kind == kind and (drafted or not one.part))

    def settings(self) -> Iterator[VideoSetting]:
        for batch in self.batches if self.plan().timed else ():
            yield from self._drawn(batch, self.prompts, judged=False)

    def judged(self) -> Iterator[VideoSetting]:
        if self.plan().judged:
            yield from self._drawn(1, self.judged_prompts, judged=True)

    def folders(self) -> list[Path]:
        return [Path(name) for name in (self.model, self.draft) if name is not None and name not in VIDEO_MODELS]

    def _drawn(self, batch: int, prompts: int, judged: bool) -> Iterator[VideoSetting]:
        for temperature in self.temperatures:
            yield VideoSetting(
                batch=batch,
                temperature=temperature,
                prompts=prompts,
                seed=self.seed,
                blocks=self.blocks,
                draws=self.draws,
                calibration=self.calibration,
                model=self.model,
                judged=judged,
            )


CONFIG = VideoBenchConfig
