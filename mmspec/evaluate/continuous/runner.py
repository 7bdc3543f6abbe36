"""How one request to a continuous model is made and run, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from PIL.Image import Image
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.evaluate.continuous.config import ContinuousSetting
from mmspec.evaluate.continuous.decodings import PipelineArguments
from mmspec.evaluate.continuous.methods import ContinuousMethod
from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.engine.observed_drafter import ObservedDrafter
from mmspec.evaluate.engine.runs import (
    Runner,
    Sampler,
    TimedRun,
    counted_passes,
    raise_errors,
    row_passes,
    timed_run,
    without_output,
)
from mmspec.evaluate.image.resources import GenerationRequest, requests_of
from mmspec.evaluate.image.runner import DrawImages
from mmspec.evaluate.model_kinds import MASKED
from mmspec.imagegen.base_pipeline import ImageOutput
from mmspec.zoo.world.image import class_names


def label_requests(resources: ContinuousResources, count: int, seed: int = 0) -> list[GenerationRequest]:
    """`count` classes in turn, in words where they are the zoo's."""
    if resources.classes == len(class_names()):
        return requests_of("c2i", count, seed)
    return [GenerationRequest(i % resources.classes, f"class {i % resources.classes}") for i in range(count)]


def cases(resources: ContinuousResources, setting: ContinuousSetting) -> list[list[GenerationRequest]]:
    """The requests of every batch of a setting."""
    return setting.batches(label_requests(resources, setting.prompts, setting.seed))


@dataclass(frozen=True, slots=True)
class HeadRun(TimedRun):
    """head_calls: of the target's and the drafter's heads, one after another.   forwards: of the target's network; a round
    may make several.   drafted, kept: tokens that were judged, and those of them that stood.
    """

    head_calls: int = 0
    forwards: int = 0
    drafted: int = 0
    kept: int = 0


def pipeline_arguments(resources: ContinuousResources, setting: ContinuousSetting) -> PipelineArguments:
    """Arguments of the pipeline that a setting decides."""
    drawn = {"guidance_scale": setting.guidance, "temperature": setting.temperature,
             "num_sampling_steps": resources.num_sampling_steps}  # fmt: skip
    return drawn | ({"num_iter": setting.num_iter or resources.total} if resources.kind == MASKED else {})


def make_draw(method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> DrawImages:
    """A function of (requests, seed) that generates their images. What it needs is loaded now."""
    how = method.make(resources) | pipeline_arguments(resources, setting)

    def draw(asked: Sequence[GenerationRequest], seed: int | Sequence[int]) -> ImageOutput:
        out = resources.pipeline([one.given for one in asked], seed=seed, **how)
        raise_errors(out.errors)
        return out

    return draw


def sampler(method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> Sampler:
    """A function of (requests, seed) that generates once, timed, pixels included where there are such; returns what it cost
    and the images, none of a model without pixels."""
    how = method.make(resources) | pipeline_arguments(resources, setting)
    pipe = resources.pipeline

    def run(asked: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[Image]]:
        valid: list[Tensor] = []  # of every draft; node 0 is what is known, or pads

        def note(draft: Draft, seconds: float) -> None:
            if draft.valid is not None:
                valid.append(draft.valid[:, 1:])

        with counted_passes(resources.transformer) as passes:
            began = perf_counter()
            request = pipe.start([one.given for one in asked], seed=seed, **how)
            request.drafter = ObservedDrafter(request.drafter, note)
            request.run()
            tokens = pipe.tokens(request.target)
            made = pipe.to_videos(tokens, request.target.errors) if resources.pixels else []
            seconds = perf_counter() - began
        raise_errors(request.target.errors)
        stats = request.stats
        run = timed_run(
            stats, token_bytes(tokens), seconds, HeadRun,
            row_passes=row_passes(stats),
            head_calls=request.target.head_calls,
            forwards=len(passes),
            drafted=sum(int(one.sum()) for one in valid),
            kept=sum(count or 0 for line in stats.accepted for count in line),
        )  # fmt: skip
        return run, [frames[0] for frames in made]

    return run


def runner(method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> Runner:
    """A function of (requests, seed) that generates once, timed, pixels included where there are such."""
    return without_output(sampler(method, resources, setting))


def token_bytes(tokens: Tensor) -> tuple[tuple[bytes, ...], ...]:
    """Tokens float [B, L, d] per row as they stand in memory: equal where every bit is."""
    return tuple(tuple(token.tobytes() for token in row) for row in tokens.float().cpu().numpy())
