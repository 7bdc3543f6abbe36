"""What `mmspec bench image` is asked to run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mmspec import zoo
from mmspec.evaluate.image_methods import PLAIN, ImageMethod, Setting
from mmspec.evaluate.image_prompts import LARGEST
from mmspec.evaluate.image_shelf import ZOO_MODELS
from mmspec.evaluate.image_suites import image_suite_of
from mmspec.evaluate.prompts import check_seed

# below 8 images a distance means nothing at all
_RANGES = {"prompts": (1, LARGEST), "images": (8, LARGEST), "repeats": (1, 1000), "threads": (1, 1024)}


@dataclass(frozen=True, slots=True)
class ImageBench:
    """What to run; None takes what the suite says.

    model: of the zoo.   prompts: of what is timed.   images: a quality figure.   methods: keys or families of the suite's
    rows, None for all.   threads: torch's, for every method alike.   Raises ValueError for settings out of range.
    """

    suite: str = "all"
    model: str = "t2i"
    prompts: int | None = None
    images: int | None = None
    batches: tuple[int, ...] | None = None
    guidance: tuple[float, ...] | None = None
    top_k: tuple[int, ...] | None = None
    temperatures: tuple[float, ...] | None = None
    methods: tuple[str, ...] | None = None
    repeats: int = 1
    seed: int = 0
    threads: int = 2

    def __post_init__(self) -> None:
        suite = image_suite_of(self.suite)
        idle = ("images",) if not suite.judged else () if suite.timed else ("prompts", "batches")
        for name in idle:
            if getattr(self, name) is not None:
                option, what = name.replace("batches", "batch"), "times requests" if suite.judged else "judges images"
                raise ValueError(f"--{option}: expected a suite that {what}, got {self.suite!r}, leave --{option} out")
        for name in ("prompts", "images", "guidance", "top_k", "temperatures"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(suite, name))
        if self.batches is None:
            object.__setattr__(self, "batches", tuple(dict.fromkeys(min(n, self.prompts) for n in suite.batches)))
        if self.model not in ZOO_MODELS:
            raise ValueError(f"--model: expected one of {', '.join(ZOO_MODELS)}, got {self.model!r}, pick one of these")
        for name, (least, most) in _RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"--{name}: expected {least} to {most}, got {getattr(self, name)}, change it")
        if not self.batches or not all(1 <= size <= self.prompts for size in self.batches):
            raise ValueError(f"--batch: expected 1 to {self.prompts} (the prompts), got {self.batches}, change one")
        for option, values in (("guidance", self.guidance), ("top-k", self.top_k), ("temperature", self.temperatures)):
            if not values or not all(0 <= value < float("inf") for value in values):
                raise ValueError(f"--{option}: expected values of at least 0, got {values}, change them")
        if suite.judged and not suite.timed and 0 in self.temperatures:
            raise ValueError("--temperature: expected values above 0 for images that are judged, got 0, leave it out")
        check_seed(self.seed)
        for name in self.methods or ():
            if not any(method.named(name) for method in self.known):
                keys = ", ".join(dict.fromkeys(method.family or method.key for method in self.known))
                raise ValueError(f"--methods: expected some of {keys}, got {name!r}, pick from these")

    @property
    def known(self) -> tuple[ImageMethod, ...]:
        """The suite's methods that the zoo has something for."""
        there, made = zoo.names(), image_suite_of(self.suite).methods
        return tuple(one for one in made if not one.part or f"{self.model}/{one.part}" in there)

    @property
    def rows(self) -> tuple[ImageMethod, ...]:
        """The methods asked for, always with plain decoding."""
        made = self.known
        if self.methods is None:
            return made
        return tuple(one for one in made if one.key == PLAIN or any(one.named(name) for name in self.methods))

    def settings(self, *, greedy: bool) -> Iterator[Setting]:
        """All settings; greedy ones, where asked for, once per guidance: top-k changes nothing there."""
        for temperature in self.temperatures:
            for guidance in self.guidance if temperature or greedy else ():
                for top_k in self.top_k if temperature else (0,):
                    yield Setting(guidance, top_k, temperature)

    def serving(self, setting: Setting) -> list[ImageMethod]:
        """The methods that exist in a setting."""
        return [method for method in self.rows if method.serves(setting.temperature)]

    def requests(self) -> int:
        """Timed requests in all, warm-ups among them, and judged rows: what a progress bar counts."""
        suite, total = image_suite_of(self.suite), 0
        if suite.timed:
            cases = sum(self.prompts // size * self.repeats + 1 for size in self.batches)
            total += sum(len(self.serving(setting)) for setting in self.settings(greedy=True)) * cases
        if suite.judged:
            total += sum(len(self.serving(setting)) for setting in self.settings(greedy=False))
        return total
