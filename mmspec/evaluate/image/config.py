"""What `mmspec bench image` can be asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mmspec import zoo
from mmspec.evaluate.engine.config import BenchConfig, option, refuse_idle
from mmspec.evaluate.engine.suite import Setting
from mmspec.io.validation import LARGEST_SCALE

if TYPE_CHECKING:
    from mmspec.evaluate.image.methods import ImageMethod

LARGEST = 1 << 12  # prompts a seed has
JUDGED_BATCH = 16  # images a request where nothing is timed


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSetting(Setting):
    """How values are drawn.   model: of the zoo.   judged: the quality of images is measured, not the time they take."""

    guidance: float
    top_k: int
    model: str = "t2i"
    judged: bool = False

    def arguments(self) -> dict:
        """Arguments of the pipeline."""
        return {"guidance_scale": self.guidance, "top_k": self.top_k, "temperature": self.temperature}

    def name(self) -> dict:
        drawn = {"guidance": self.guidance, "top_k": self.top_k, "temperature": self.temperature}
        return {"batch": self.batch, **drawn}

    def row(self) -> dict:
        count = {"images": self.prompts} if self.judged else {"prompts": self.cases * self.batch}
        return {"model": self.model, **self.name(), **count, "seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class ImageBenchConfig(BenchConfig):
    """What to run; None takes what the suite says.

    model: of the zoo.   prompts: of what is timed.   images: a quality figure; below 8 a distance means nothing at all.
    """

    about: ClassVar[str] = (
        "The zoo's image model: plain, exact and relaxed decoding; seconds, steps, and quality against plain images."
    )

    suite: str = option("all", "all (speed and quality), speed, quality or pareto.")
    prompts: int | None = option(None, "Held-out prompts that are timed.", least=1, most=LARGEST)
    batches: tuple[int, ...] | None = option(None, "Batch sizes that are timed.", flag="--batch", shown="N,N", least=1)
    model: str = option("t2i", "The zoo's t2i or c2i.")
    images: int | None = option(None, "Images of every quality figure.", least=8, most=LARGEST)
    guidance: tuple[float, ...] | None = option(None, "Guidance scales.", shown="S,S", most=LARGEST_SCALE)
    top_k: tuple[int, ...] | None = option(None, "Top-k; 0 for all values.", shown="K,K")

    def __post_init__(self) -> None:
        from mmspec.evaluate.image.resources import ZOO_MODELS

        suite = self.plan()
        refuse_idle(self, suite.timed, suite.judged)
        if self.model not in ZOO_MODELS:
            raise ValueError(f"--model: expected one of {', '.join(ZOO_MODELS)}, got {self.model!r}, pick one of these")
        super().__post_init__()
        if suite.judged and not suite.timed and 0 in self.temperatures:
            raise ValueError("--temperature: expected values above 0 for images that are judged, got 0, leave it out")

    def short_name(self, name: str) -> str:
        from mmspec.evaluate.image.decodings import short_name

        return short_name(name)

    def known(self) -> tuple[ImageMethod, ...]:
        there = zoo.names()
        return tuple(one for one in self.plan().methods if not one.part or f"{self.model}/{one.part}" in there)

    def settings(self) -> Iterator[ImageSetting]:
        for batch in self.batches if self.plan().timed else ():
            yield from self._drawn(batch, self.prompts, judged=False)

    def judged(self) -> Iterator[ImageSetting]:
        if self.plan().judged:
            yield from self._drawn(min(JUDGED_BATCH, self.images), self.images, judged=True)

    def _drawn(self, batch: int, prompts: int, judged: bool) -> Iterator[ImageSetting]:
        """All settings; greedy ones, which are only timed, once per guidance: top-k changes nothing there."""
        for temperature in self.temperatures:
            for guidance in () if judged and not temperature else self.guidance:
                for top_k in self.top_k if temperature else (0,):
                    yield ImageSetting(
                        batch=batch,
                        temperature=temperature,
                        prompts=prompts,
                        seed=self.seed,
                        guidance=guidance,
                        top_k=top_k,
                        model=self.model,
                        judged=judged,
                    )


CONFIG = ImageBenchConfig
