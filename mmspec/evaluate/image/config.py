"""The settings of `mmspec bench image`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mmspec import zoo
from mmspec.evaluate.engine.config import option
from mmspec.evaluate.engine.drawn import LARGEST, DrawnBenchConfig, DrawnSetting
from mmspec.evaluate.engine.suite import Method
from mmspec.io.validation import LARGEST_SCALE
from mmspec.run.decoding_options import check_choice
from mmspec.run.model_kinds import IMAGE_MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSetting(DrawnSetting):
    varied: ClassVar[tuple[str, ...]] = ("guidance", "top_k")

    guidance: float
    top_k: int  # 0 for all values
    model: str = "t2i"
    pictures: int = 1  # of each prompt, one after another

    def row(self) -> dict:
        return DrawnSetting.row(self) | ({"pictures": self.pictures} if self.pictures > 1 else {})

    def arguments(self) -> dict:
        return {"guidance_scale": self.guidance, "top_k": self.top_k, "temperature": self.temperature}


@dataclass(frozen=True, kw_only=True)
class ImageBenchConfig(DrawnBenchConfig):
    """The settings of `mmspec bench image`; None takes the value of the suite. With fewer than 8 images, a distance
    means nothing."""

    about: ClassVar[str] = (
        "The zoo's image model: plain, exact and relaxed decoding; seconds, steps, and quality against plain images."
    )
    setting: ClassVar[type[DrawnSetting]] = ImageSetting
    copied: ClassVar[tuple[str, ...]] = (*DrawnBenchConfig.copied, "pictures")

    suite: str = option("all", "all (speed and quality), speed, quality, pareto or families.")
    model: str = option("t2i", "The zoo's t2i or c2i.")
    images: int | None = option(None, "Images of every quality figure.", least=8, most=LARGEST)
    guidance: tuple[float, ...] | None = option(None, "Guidance scales.", shown="S,S", most=LARGEST_SCALE)
    top_k: tuple[int, ...] | None = option(None, "Top-k; 0 for all values.", shown="K,K")
    pictures: int | None = option(None, "Pictures of each prompt, one after another.", least=1, most=LARGEST)

    def __post_init__(self) -> None:
        check_choice("--model", self.model, IMAGE_MODELS)
        super().__post_init__()
        if not self.plan().timed and 0 in self.temperatures:
            raise ValueError("--temperature: expected values above 0 for images that are judged, got 0, leave it out")

    def short_name(self, name: str) -> str:
        from mmspec.run.image_models import short_name

        return short_name(name)

    def known(self) -> tuple[Method, ...]:
        there = zoo.names()
        return tuple(
            method for method in self.plan().methods if not method.part or f"{self.model}/{method.part}" in there
        )

    def check(self, resources: Any) -> None:
        if self.plan().judged:
            from mmspec.evaluate.quality.metrics import need_torchmetrics  # imports torch

            need_torchmetrics()

    def drawn(self, batch: int, prompts: int, *, judged: bool) -> Iterator[DrawnSetting]:
        """Yield the settings of a batch size; greedy settings are timed once per guidance, since they ignore top-k."""
        for sample in super().drawn(batch, prompts, judged=judged):
            if sample.temperature:
                yield sample
            elif not judged and sample.top_k == self.top_k[0]:
                yield replace(sample, top_k=0)


CONFIG = ImageBenchConfig
