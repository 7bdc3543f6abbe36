"""A method `mmspec bench image` compares, as data, and how one request of it is run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter

from mmspec.core.loop import Drafter
from mmspec.core.stats import Stats
from mmspec.evaluate.bench import GREEDY, SAMPLED, Run, parts_of
from mmspec.evaluate.image_prompts import Asked
from mmspec.evaluate.image_shelf import ImageShelf
from mmspec.imagegen.output import ImageOutput

PLAIN = "ar"
Draw = Callable[[Sequence[Asked], int | Sequence[int]], ImageOutput]


@dataclass(frozen=True, slots=True)
class ImageMethod:
    """One row of the bench.

    key: what --methods takes.   title: what tables print.   make: its drafter, None for plain decoding; what it needs is
    imported and loaded when called.   rule: as `rule_from_name` reads it.   family: rows that differ in one knob, which
    plots join and --methods takes too.   knob: its value.   at: which temperatures it is run at.
    part: what the zoo must have for its model; where the zoo does not know it, there is no such row.
    """

    key: str
    title: str
    make: Callable[[ImageShelf], Drafter | None] = lambda shelf: None
    rule: str = "exact"
    family: str = ""
    knob: float | None = None
    at: tuple[str, ...] = GREEDY + SAMPLED
    part: str = ""

    def serves(self, temperature: float) -> bool:
        """Whether the row exists at this temperature."""
        return ("sampled" if temperature > 0 else "greedy") in self.at

    def named(self, name: str) -> bool:
        """Whether --methods means this row by `name`."""
        return bool(name) and name in (self.key, self.family)


@dataclass(frozen=True, slots=True)
class Setting:
    """How values are drawn. Prints as "guidance 4, top-k 1000, T = 1"."""

    guidance: float
    top_k: int
    temperature: float

    def arguments(self) -> dict:
        """Arguments of the pipeline."""
        return {"guidance_scale": self.guidance, "top_k": self.top_k, "temperature": self.temperature}

    def row(self) -> dict:
        """Fields of a row."""
        return {"guidance": self.guidance, "top_k": self.top_k, "temperature": self.temperature}

    def __str__(self) -> str:
        return f"guidance {self.guidance:g}, top-k {self.top_k}, T = {self.temperature:g}"


def make_draw(method: ImageMethod, shelf: ImageShelf, setting: Setting) -> Draw:
    """A function of (prompts, seed) that generates their images. What it needs is loaded now."""
    decoding, rule = method.make(shelf), None if method.rule == "exact" else shelf.rule(method.rule)

    def draw(asked: Sequence[Asked], seed: int | Sequence[int]) -> ImageOutput:
        out = shelf.pipeline(
            [one.given for one in asked], decoding=decoding, rule=rule, seed=seed, **setting.arguments()
        )
        if out.errors:
            raise ValueError("; ".join(out.errors.values()))
        return out

    return draw


def make_runner(method: ImageMethod, shelf: ImageShelf, setting: Setting) -> Callable[[Sequence[Asked], int], Run]:
    """A function of (prompts, seed) that generates once, timed, pixels included."""
    draw = make_draw(method, shelf, setting)

    def run(asked: Sequence[Asked], seed: int) -> Run:
        began = perf_counter()
        out = draw(asked, seed)
        seconds, stats = perf_counter() - began, out.stats
        return Run(
            seconds,
            tuple(map(tuple, out.tokens.tolist())),
            stats.target_passes,
            stats.accept_length,
            parts_of(stats, seconds),
            stats.exact,
            stats.drafter_passes,
            tuple(row_passes(stats)),
        )

    return run


def runner_or_failure(
    method: ImageMethod, shelf: ImageShelf, setting: Setting
) -> Callable[[Sequence[Asked], int], Run]:
    """The method's runner; one that raises the reason where its parts are missing."""
    try:
        return make_runner(method, shelf, setting)
    except (ImportError, ValueError) as error:
        reason = error

        def fails(asked: Sequence[Asked], seed: int) -> Run:
            raise ValueError(str(reason))

        return fails


def row_passes(stats: Stats) -> list[int]:
    """Target passes each image took part in, the prompt's among them."""
    return [sum(kept[row] is not None for kept in stats.accepted) for row in range(len(stats.emitted))]


def figures_of(parts: Sequence[Stats], seconds: float, failed: Collection[int] = ()) -> dict:
    """What a call of several requests cost, rounded once for the screen and the file.

    failed: numbers of images that stand in no mean, unless all have failed.
    """
    costs = [pair for stats in parts for pair in zip(row_passes(stats), stats.emitted, strict=True)]
    whole = [pair for number, pair in enumerate(costs) if number not in failed]
    passes, emitted = zip(*(whole or costs), strict=True)
    times = ("prefill", "draft", "target", "verify", "other")
    return {
        "images": len(whole),
        "seconds": round(seconds, 3),
        "drafter": parts[0].drafter,
        "rule": parts[0].rule,
        "exact": all(stats.exact for stats in parts),
        "target_passes": round(sum(passes) / len(passes), 1),
        "plain_passes": round(sum(emitted) / len(emitted), 1),
        "step_compression": round(sum(emitted) / sum(passes), 3),
        "drafter_passes": sum(stats.drafter_passes for stats in parts),
        **{f"{part}_s": round(sum(getattr(stats, f"{part}_s") for stats in parts), 4) for part in times},
    }
