"""The settings of `mmspec bench continuous`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmspec.evaluate.engine.config import option
from mmspec.evaluate.engine.drawn import LARGEST, DrawnBenchConfig, DrawnSetting
from mmspec.evaluate.engine.suite import Method
from mmspec.io.validation import LARGEST_SCALE
from mmspec.run.model_kinds import CAUSAL, CONTINUOUS_MODELS, continuous_kind, in_zoo


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousSetting(DrawnSetting):
    varied: ClassVar[tuple[str, ...]] = ("guidance", "num_iter")

    guidance: float
    num_iter: int  # steps over an image, 0 for a single token per step
    model: str = "mar"


@dataclass(frozen=True, kw_only=True)
class ContinuousBenchConfig(DrawnBenchConfig):
    """The settings of `mmspec bench continuous`; None takes the value of the suite. Drafted rows are left out without a
    drafter. With fewer than 8 images, a distance means nothing."""

    about: ClassVar[str] = (
        "Image models whose tokens are vectors: plain, drafted and scheduled decoding; seconds, calls of the head, and "
        "quality against plain images."
    )
    setting: ClassVar[type[DrawnSetting]] = ContinuousSetting

    suite: str = option("speed", "speed, quality, pareto (speed against quality) or published.")
    prompts: int | None = option(None, "Classes that are timed.", least=1, most=LARGEST)
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
        kind = continuous_kind(self.model)
        if self.draft is not None and continuous_kind(self.draft, "--draft") != kind:
            raise ValueError(
                f"--draft: expected a {kind} model as --model is, got {self.draft!r}, name a model of that kind"
            )
        if kind == CAUSAL:
            if self.num_iter not in (None, (0,)):
                raise ValueError(f"--num-iter: expected it left out for a causal model, got {self.num_iter}, drop it")
            object.__setattr__(self, "num_iter", (0,))
        super().__post_init__()

    def known(self) -> tuple[Method, ...]:
        kind, drafted = continuous_kind(self.model), self.draft is not None or in_zoo(f"{self.model}/draft")
        return tuple(
            method for method in self.plan().methods if method.kind in ("", kind) and (drafted or not method.part)
        )

    def check(self, resources: Any) -> None:
        if self.plan().judged:
            from mmspec.evaluate.quality.metrics import need_torchmetrics  # imports torch

            need_torchmetrics()
            resources.check_judged()

    def folders(self) -> list[Path]:
        return [Path(name) for name in (self.model, self.draft) if name is not None and name not in CONTINUOUS_MODELS]


CONFIG = ContinuousBenchConfig
