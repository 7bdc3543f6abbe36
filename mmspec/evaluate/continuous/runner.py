"""How one request to a continuous model runs, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from time import perf_counter

from PIL.Image import Image
from torch import Tensor, nn

from mmspec.core.loop import Decoding
from mmspec.evaluate.continuous.config import ContinuousSetting
from mmspec.evaluate.continuous.counting import Counting
from mmspec.evaluate.continuous.kinds import MASKED
from mmspec.evaluate.continuous.methods import ContinuousMethod, How
from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.engine.runs import Run, Runner, Sampler, row_passes, timed_run, without_output
from mmspec.evaluate.image.requests import Request
from mmspec.imagegen.output import ImageOutput

Draw = Callable[[Sequence[Request], int | Sequence[int]], ImageOutput]


@dataclass(frozen=True, slots=True)
class HeadRun(Run):
    """head_calls: of the target's and the drafter's heads, one after another.   forwards: of the target's network; a round
    may make several.   drafted, kept: tokens that were judged, and those of them that stood.
    """

    head_calls: int = 0
    forwards: int = 0
    drafted: int = 0
    kept: int = 0


def arguments(resources: ContinuousResources, setting: ContinuousSetting) -> How:
    """Arguments of the pipeline that a setting decides."""
    drawn = {"guidance_scale": setting.guidance, "temperature": setting.temperature,
             "num_sampling_steps": resources.num_sampling_steps}  # fmt: skip
    return drawn | ({"num_iter": setting.num_iter or resources.total} if resources.kind == MASKED else {})


def make_draw(method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> Draw:
    """A function of (requests, seed) that generates their images. What it needs is loaded now."""
    how = method.make(resources) | arguments(resources, setting)

    def draw(asked: Sequence[Request], seed: int | Sequence[int]) -> ImageOutput:
        out = resources.pipeline([one.given for one in asked], seed=seed, **how)
        _check(out.errors)
        return out

    return draw


def sampler(method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> Sampler:
    """A function of (requests, seed) that generates once, timed, pixels included where there are such; returns what it cost
    and the images, none of a model without pixels."""
    how = method.make(resources) | arguments(resources, setting)
    pipe = resources.pipeline

    def run(asked: Sequence[Request], seed: int) -> tuple[Run, list[Image]]:
        with forwards(resources.transformer) as passes:
            began = perf_counter()
            request = pipe.start([one.given for one in asked], seed=seed, **how)
            counting = request.drafter = Counting(request.drafter)
            request.run()
            tokens = pipe.tokens(request.target)
            made = pipe.to_videos(tokens, request.target.errors) if resources.pixels else []
            seconds = perf_counter() - began
        _check(request.target.errors)
        return _run(request, tokens, seconds, len(passes), counting), [frames[0] for frames in made]

    return run


def runner(method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> Runner:
    """A function of (requests, seed) that generates once, timed, pixels included where there are such."""
    return without_output(sampler(method, resources, setting))


def _run(request: Decoding, tokens: Tensor, seconds: float, passes: int, counting: Counting) -> HeadRun:
    stats = request.stats
    made = timed_run(stats, bits(tokens), seconds, row_passes(stats))
    shared = {one.name: getattr(made, one.name) for one in fields(made)}
    kept = sum(count or 0 for line in stats.accepted for count in line)
    return HeadRun(
        **shared, head_calls=request.target.head_calls, forwards=passes, drafted=counting.drafted(), kept=kept
    )


def bits(tokens: Tensor) -> tuple[tuple[bytes, ...], ...]:
    """Tokens float [B, L, d] per row as they stand in memory: equal where every bit is."""
    return tuple(tuple(token.tobytes() for token in row) for row in tokens.float().cpu().numpy())


@contextmanager
def forwards(network: nn.Module) -> Iterator[list[int]]:
    """A list that grows by one with every forward pass of `network` inside the block."""
    passes: list[int] = []
    hook = network.register_forward_hook(lambda *given: passes.append(1))
    try:
        yield passes
    finally:
        hook.remove()


def _check(errors: dict[int, str]) -> None:
    if errors:
        raise ValueError("; ".join(errors.values()))
