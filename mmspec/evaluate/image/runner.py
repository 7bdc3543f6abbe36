"""How one request to an image model runs, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter

from PIL.Image import Image

from mmspec.core.stats import Stats
from mmspec.evaluate.engine.runs import Runner, Sampler, TimedRun, raise_errors, row_passes, timed_run, without_output
from mmspec.evaluate.image.config import ImageSetting
from mmspec.evaluate.image.methods import ImageMethod
from mmspec.evaluate.image.resources import GenerationRequest, ImageResources, requests_of
from mmspec.imagegen.base_pipeline import ImageOutput


def cases(resources: ImageResources, setting: ImageSetting) -> list[list[GenerationRequest]]:
    """The requests of every batch of a setting."""
    return setting.batches(requests_of(setting.model, setting.prompts, setting.seed))


DrawImages = Callable[[Sequence[GenerationRequest], int | Sequence[int]], ImageOutput]


def make_draw(method: ImageMethod, resources: ImageResources, setting: ImageSetting) -> DrawImages:
    """A function of (prompts, seed) that generates their images. What it needs is loaded now."""
    decoding, rule = method.make(resources), method.rule_of(resources)

    def draw(asked: Sequence[GenerationRequest], seed: int | Sequence[int]) -> ImageOutput:
        given = [one.given for one in asked]
        out = resources.pipeline(given, decoding=decoding, rule=rule, seed=seed, **setting.arguments())
        raise_errors(out.errors)
        return out

    return draw


def codes_run(out: ImageOutput, seconds: float) -> TimedRun:
    """A request for images or videos of codes."""
    return timed_run(out.stats, tuple(map(tuple, out.tokens.tolist())), seconds, row_passes=row_passes(out.stats))


def sampler(method: ImageMethod, resources: ImageResources, setting: ImageSetting) -> Sampler:
    """A function of (prompts, seed) that generates once, timed, pixels included; returns what it cost and the images."""
    draw = make_draw(method, resources, setting)

    def run(asked: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[Image]]:
        began = perf_counter()
        out = draw(asked, seed)
        return codes_run(out, perf_counter() - began), out.images

    return run


def runner(method: ImageMethod, resources: ImageResources, setting: ImageSetting) -> Runner:
    """A function of (prompts, seed) that generates once, timed, pixels included."""
    return without_output(sampler(method, resources, setting))


def figures_of(parts: Sequence[Stats], seconds: float, failed: Collection[int] = ()) -> dict:
    """What a call of several requests cost, rounded once for the screen and the file.

    failed: numbers of images that stand in no mean, unless all have failed.
    """
    costs = [pair for stats in parts for pair in zip(row_passes(stats), stats.emitted, strict=True)]
    whole = [pair for number, pair in enumerate(costs) if number not in failed]
    passes, emitted = zip(*(whole or costs), strict=True)
    times = (*parts[0].seconds(), "other")
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
