"""What `mmspec bench continuous` can be asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mmspec.evaluate.engine.config import BenchConfig, option, refuse_idle
from mmspec.evaluate.engine.suite import Setting
from mmspec.evaluate.model_kinds import CAUSAL, CONTINUOUS_MODELS, continuous_kind, in_zoo
from mmspec.io.validation import LARGEST_SCALE

if TYPE_CHECKING:
    from mmspec.evaluate.continuous.methods import ContinuousMethod

LARGEST = 1 << 12  # classes in turn
JUDGED_BATCH = 16  # images a request where nothing is timed


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousSetting(Setting):
    """How tokens are drawn.   num_iter: steps over an image, 0 for one token a step.   model: as `ContinuousBenchConfig` has it.
    judged: the quality of images is measured, not the time they take.
    """

    guidance: float
    num_iter: int
    model: str = "mar"
    judged: bool = False

    def name(self) -> dict:
        drawn = {"guidance": self.guidance, "num_iter": self.num_iter, "temperature": self.temperature}
        return {"batch": self.batch, **drawn}

    def row(self) -> dict:
        count = {"images": self.prompts} if self.judged else {"prompts": self.cases * self.batch}
        return {"model": self.model, **self.name(), **count, "seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class ContinuousBenchConfig(BenchConfig):
    """What to run; None takes what the suite says.

    model, draft: of the zoo, or folders; draft None for the zoo's own of its model, and no drafted rows where there is none.
    images: a quality figure; below 8 a distance means nothing at all.
    """

    about: ClassVar[str] = (
        "Image models whose tokens are vectors: plain, drafted and scheduled decoding; seconds, calls of the head, and "
        "quality against plain images."
    )

    suite: str = option("speed", "speed, quality, pareto (speed against quality) or published.")
    prompts: int | None = option(None, "Classes that are timed.", least=1, most=LARGEST)
    batches: tuple[int, ...] | None = option(None, "Batch sizes that are timed.", flag="--batch", shown="N,N", least=1)
    model: str = option("mar", "The zoo's mar or car, or a folder with a saved pipeline.")
    draft: str | None = option(
        None, "A folder with the smaller pipeline that drafts; the zoo's own when left out.", shown="FOLDER"
    )
    images: int | None = option(None, "Images of every quality figure.", least=8, most=LARGEST)
    guidance: tuple[float, ...] | None = option(None, "Guidance scales.", shown="S,S", most=LARGEST_SCALE)
    num_sampling_steps: str | None = option(
        None, "Denoising steps of the head, such as 100 or ddim100; the model's own when left out.", shown="STEPS"
    )
    num_iter: tuple[int, ...] | None = option(
        None, "Steps over an image; 0 for one token a step.", shown="N,N", most=1 << 20
    )

    def __post_init__(self) -> None:
        suite = self.plan()
        refuse_idle(self, suite.timed, suite.judged)
        kind = continuous_kind(self.model)
        if self.draft is not None and continuous_kind(self.draft, "--draft") != kind:
            raise ValueError(
                f"--draft: expected a {kind} model as --model is, got {self.draft!r}, take one of its kind"
            )
        if kind == CAUSAL and self.num_iter not in (None, (0,)):
            raise ValueError(f"--num-iter: expected it left out for a causal model, got {self.num_iter}, drop it")
        if kind == CAUSAL:
            object.__setattr__(self, "num_iter", (0,))
        super().__post_init__()

    def known(self) -> tuple[ContinuousMethod, ...]:
        kind, drafted = continuous_kind(self.model), self.draft is not None or in_zoo(f"{self.model}/draft")
        return tuple(one for one in self.plan().methods if one.kind in ("", kind) and (drafted or not one.part))

    def settings(self) -> Iterator[ContinuousSetting]:
        for batch in self.batches if self.plan().timed else ():
            yield from self._drawn(batch, self.prompts, judged=False)

    def judged(self) -> Iterator[ContinuousSetting]:
        if self.plan().judged:
            yield from self._drawn(min(JUDGED_BATCH, self.images), self.images, judged=True)

    def check(self, resources: Any) -> None:
        if self.plan().judged:
            resources.check_judged()

    def folders(self) -> list[Path]:
        return [Path(name) for name in (self.model, self.draft) if name is not None and name not in CONTINUOUS_MODELS]

    def _drawn(self, batch: int, prompts: int, judged: bool) -> Iterator[ContinuousSetting]:
        for temperature in self.temperatures:
            for guidance in self.guidance:
                for num_iter in self.num_iter:
                    yield ContinuousSetting(
                        batch=batch,
                        temperature=temperature,
                        prompts=prompts,
                        seed=self.seed,
                        guidance=guidance,
                        num_iter=num_iter,
                        model=self.model,
                        judged=judged,
                    )


CONFIG = ContinuousBenchConfig
