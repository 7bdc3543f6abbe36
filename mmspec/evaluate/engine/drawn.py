"""Shared classes of the benches of drawn images and videos: methods with a knob, settings, suites and options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

from mmspec.evaluate.engine.config import BenchConfig, flag_of, option
from mmspec.evaluate.engine.suite import Method, Setting, Suite

LARGEST = 1 << 12  # prompts of a seed


@dataclass(frozen=True, slots=True)
class DrawnMethod(Method):
    """A method whose family differs in a single setting, `knob`; plots join rows along it."""

    shown: ClassVar[tuple[str, ...]] = ("family", "knob")

    knob: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSetting(Setting):
    varied: ClassVar[tuple[str, ...]] = ()  # the fields beside batch and temperature that distinguish settings

    model: str  # of the zoo, or a folder
    judged: bool = False  # measure the quality of the output instead of its time

    def name(self) -> dict:
        drawn = {name: getattr(self, name) for name in self.varied}
        return {"batch": self.batch, **drawn, "temperature": self.temperature}

    def row(self) -> dict:
        count = self.judged_count() if self.judged else {"prompts": self.cases * self.batch}
        return {"model": self.model, **self.name(), **count, "seed": self.seed}

    def judged_count(self) -> dict:
        return {"images": self.prompts}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSuite(Suite):
    timed: bool = True  # time every method, interleaved with plain decoding on the same prompts
    judged: bool = False  # compare the output of every method with plain decoding's
    prompts: int = 16  # the default number of timed prompts
    batches: tuple[int, ...] = (1, 8)
    temperatures: tuple[float, ...] = (1.0,)
    plot: bool = False  # the suite has a curve


@dataclass(frozen=True, kw_only=True)
class DrawnBenchConfig(BenchConfig):
    setting: ClassVar[type[DrawnSetting]]
    copied: ClassVar[tuple[str, ...]] = ("model", "seed")  # the fields that a setting copies from the options
    output: ClassVar[str] = "images"  # the kind of judged output, for errors
    judged_prompts_field: ClassVar[str] = "images"
    judged_batch: ClassVar[int] = 16  # the judged prompts drawn at once

    prompts: int | None = option(None, "Held-out prompts that are timed.", least=1, most=LARGEST)
    batches: tuple[int, ...] | None = option(None, "Batch sizes that are timed.", flag="--batch", shown="N,N", least=1)

    def __post_init__(self) -> None:
        suite = self.plan()
        self.refuse("times requests", not suite.timed, "prompts", "batches")
        self.refuse(f"judges {self.output}", not suite.judged, self.judged_prompts_field)
        super().__post_init__()

    def refuse(self, purpose: str, is_idle: bool, *names: str) -> None:
        """Raise an error for options that have no effect in the chosen suite."""
        for name in names:
            if is_idle and getattr(self, name) is not None:
                flag = flag_of(self, name)
                raise ValueError(f"{flag}: expected a suite that {purpose}, got {self.suite!r}, leave {flag} out")

    def settings(self) -> Iterator[DrawnSetting]:
        for batch in self.batches if self.plan().timed else ():
            yield from self.drawn(batch, self.prompts, judged=False)

    def judged(self) -> Iterator[DrawnSetting]:
        if self.plan().judged:
            prompts = getattr(self, self.judged_prompts_field)
            yield from self.drawn(min(self.judged_batch, prompts), prompts, judged=True)

    def drawn(self, batch: int, prompts: int, *, judged: bool) -> Iterator[DrawnSetting]:
        """Yield the settings of a batch size: every combination of temperatures and varied fields."""
        shared = {name: getattr(self, name) for name in self.copied}
        names = self.setting.varied
        for temperature, *values in product(self.temperatures, *(getattr(self, name) for name in names)):
            varied = dict(zip(names, values, strict=True))
            yield self.setting(batch=batch, temperature=temperature, prompts=prompts, judged=judged, **varied, **shared)
