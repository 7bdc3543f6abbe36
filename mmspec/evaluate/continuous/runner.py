"""How one request to a continuous model is made and run, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from time import perf_counter

from PIL.Image import Image
from torch import Tensor, nn

from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.core.loop import DecodingRun, Drafter, DraftState, Target
from mmspec.evaluate.continuous.config import ContinuousSetting
from mmspec.evaluate.continuous.methods import ContinuousMethod, PipelineArguments
from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.engine.runs import Runner, Sampler, TimedRun, row_passes, timed_run, without_output
from mmspec.evaluate.image.resources import GenerationRequest, requests_of
from mmspec.evaluate.model_kinds import MASKED
from mmspec.imagegen.base_pipeline import ImageOutput
from mmspec.zoo.world.image import class_names


class CountingDrafter:
    """A drafter that drafts as another does and counts. Of one request."""

    def __init__(self, drafter: Drafter):
        self.drafter, self.name = drafter, drafter.name
        self._valid: list[Tensor] = []

    def open(self, target: Target) -> CountingDraftState:
        return CountingDraftState(self.drafter.open(target), self._valid)

    def drafted(self) -> int:
        """Values that were judged, over all rows and rounds."""
        return sum(int(valid.sum()) for valid in self._valid)


class CountingDraftState:
    """As the state it is around."""

    def __init__(self, state: DraftState, valid: list[Tensor]):
        self.state, self._valid = state, valid

    @property
    def passes(self) -> int:
        return self.state.passes

    def propose(self, target: Target, keys: Keys) -> Draft:
        draft = self.state.propose(target, keys)
        if draft.valid is not None:
            self._valid.append(draft.valid[:, 1:])  # node 0 is what is known, or pads
        return draft

    def observe(self, target: Target, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.state.observe(target, draft, evidence, verdict)


def label_requests(resources: ContinuousResources, count: int, seed: int = 0) -> list[GenerationRequest]:
    """`count` classes in turn, in words where they are the zoo's."""
    if resources.classes == len(class_names()):
        return requests_of("c2i", count, seed)
    return [GenerationRequest(i % resources.classes, f"class {i % resources.classes}") for i in range(count)]


def cases(resources: ContinuousResources, setting: ContinuousSetting) -> list[list[GenerationRequest]]:
    """The requests of every batch of a setting."""
    return setting.batches(label_requests(resources, setting.prompts, setting.seed))


DrawContinuous = Callable[[Sequence[GenerationRequest], int | Sequence[int]], ImageOutput]


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


def make_draw(method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> DrawContinuous:
    """A function of (requests, seed) that generates their images. What it needs is loaded now."""
    how = method.make(resources) | pipeline_arguments(resources, setting)

    def draw(asked: Sequence[GenerationRequest], seed: int | Sequence[int]) -> ImageOutput:
        out = resources.pipeline([one.given for one in asked], seed=seed, **how)
        _raise_errors(out.errors)
        return out

    return draw


def sampler(method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> Sampler:
    """A function of (requests, seed) that generates once, timed, pixels included where there are such; returns what it cost
    and the images, none of a model without pixels."""
    how = method.make(resources) | pipeline_arguments(resources, setting)
    pipe = resources.pipeline

    def run(asked: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[Image]]:
        with counted_forwards(resources.transformer) as passes:
            began = perf_counter()
            request = pipe.start([one.given for one in asked], seed=seed, **how)
            counting = request.drafter = CountingDrafter(request.drafter)
            request.run()
            tokens = pipe.tokens(request.target)
            made = pipe.to_videos(tokens, request.target.errors) if resources.pixels else []
            seconds = perf_counter() - began
        _raise_errors(request.target.errors)
        return _run(request, tokens, seconds, len(passes), counting), [frames[0] for frames in made]

    return run


def runner(method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> Runner:
    """A function of (requests, seed) that generates once, timed, pixels included where there are such."""
    return without_output(sampler(method, resources, setting))


def _run(request: DecodingRun, tokens: Tensor, seconds: float, passes: int, counting: CountingDrafter) -> HeadRun:
    stats = request.stats
    made = timed_run(stats, token_bytes(tokens), seconds, row_passes(stats))
    shared = {one.name: getattr(made, one.name) for one in fields(made)}
    kept = sum(count or 0 for line in stats.accepted for count in line)
    return HeadRun(
        **shared, head_calls=request.target.head_calls, forwards=passes, drafted=counting.drafted(), kept=kept
    )


def token_bytes(tokens: Tensor) -> tuple[tuple[bytes, ...], ...]:
    """Tokens float [B, L, d] per row as they stand in memory: equal where every bit is."""
    return tuple(tuple(token.tobytes() for token in row) for row in tokens.float().cpu().numpy())


@contextmanager
def counted_forwards(network: nn.Module) -> Iterator[list[int]]:
    """A list that grows by one with every forward pass of `network` inside the block."""
    passes: list[int] = []
    hook = network.register_forward_hook(lambda *given: passes.append(1))
    try:
        yield passes
    finally:
        hook.remove()


def _raise_errors(errors: dict[int, str]) -> None:
    if errors:
        raise ValueError("; ".join(errors.values()))
