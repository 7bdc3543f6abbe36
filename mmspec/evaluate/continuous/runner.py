"""How one request to a continuous model runs, what it costs, and how sure the target is of each token."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from einops import rearrange, repeat
from PIL.Image import Image
from torch import Tensor

from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.evaluate.continuous.config import ContinuousSetting
from mmspec.evaluate.continuous.decodings import PipelineArguments
from mmspec.evaluate.continuous.methods import ContinuousMethod
from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.observed_drafter import ObservedDrafter
from mmspec.evaluate.engine.runs import (
    Sampler,
    TimedRun,
    counted_passes,
    raise_errors,
    row_passes,
    runner_of,
    timed_run,
)
from mmspec.evaluate.image.resources import GenerationRequest, requests_of
from mmspec.evaluate.image.runner import DrawImages
from mmspec.evaluate.model_kinds import MASKED
from mmspec.imagegen.base_pipeline import ImageOutput
from mmspec.imagegen.continuous.head_sampling.head import sample
from mmspec.imagegen.continuous.head_sampling.sampling import KeyedNoise, Noise
from mmspec.imagegen.continuous.masked_decoding import PlainSteps
from mmspec.imagegen.continuous.masked_target import MaskedTarget
from mmspec.zoo.world.image import class_names


def label_requests(resources: ContinuousResources, count: int, seed: int = 0) -> list[GenerationRequest]:
    """`count` classes in turn, in words where they are the zoo's."""
    if resources.classes == len(class_names()):
        return requests_of("c2i", count, seed)
    return [GenerationRequest(i % resources.classes, f"class {i % resources.classes}") for i in range(count)]


def cases(resources: ContinuousResources, setting: ContinuousSetting) -> list[list[GenerationRequest]]:
    """The requests of every batch of a setting."""
    return setting.batches(label_requests(resources, setting.prompts, setting.seed))


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
    and the images, none of a model without pixels.

    Of a run, `more` has head_calls: of the target's and the drafter's heads, one after another.   forwards: of the target's
    network; a round may make several.   drafted, kept: tokens that were judged, and those of them that stood.
    """
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
        more = {
            "head_calls": request.target.head_calls,
            "forwards": len(passes),
            "drafted": sum(int(one.sum()) for one in valid),
            "kept": sum(count or 0 for line in stats.accepted for count in line),
        }
        run = timed_run(stats, token_bytes(tokens), seconds, row_passes=row_passes(stats), more=more)
        return run, [frames[0] for frames in made]

    return run


runner = runner_of(sampler)


def token_bytes(tokens: Tensor) -> tuple[tuple[bytes, ...], ...]:
    """Tokens float [B, L, d] per row as they stand in memory: equal where every bit is."""
    return tuple(tuple(token.tobytes() for token in row) for row in tokens.float().cpu().numpy())


OBSERVED_IMAGES = 8  # images that draws are watched on
SECOND_DRAW_SEED = 1 << 30  # seed of the second draw


class PairedDraws(PlainSteps):
    """Plain decoding of one request that draws every token but the first step's a second time, with other noise.

    gaps: float [n] per round, squared distances of the two draws.
    """

    def __init__(self, other: Noise):
        self.other, self.gaps = other, []
        self._second: Tensor | None = None

    def propose(self, target: MaskedTarget, keys: Keys) -> Draft:
        draft, own = super().propose(target, keys), target.noise
        target.noise = self.other
        try:
            self._second = target.score(draft).own
        finally:
            target.noise = own
        return draft

    def observe(self, target: MaskedTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        if self._second is not None:
            self.gaps.append((evidence.own - self._second).square().sum(-1)[draft.index < target.total])


def _masked(resources: ContinuousResources, given: list, how: dict, seed: int) -> tuple[Tensor, Tensor]:
    """Squared distances of two draws of the same tokens, and the images."""
    head = resources.head
    twice = PairedDraws(
        KeyedNoise(Keys.of(seed + SECOND_DRAW_SEED, len(given), resources.pipeline.model.device), head.steps, head.dim)
    )
    tokens = resources.pipeline(given, decoding=twice, seed=seed, pixels=False, **how).tokens
    return torch.cat(twice.gaps) if twice.gaps else tokens.new_zeros(0), tokens


@torch.no_grad()
def _causal(resources: ContinuousResources, given: list, how: dict, seed: int) -> tuple[Tensor, Tensor]:
    """As `_masked`: both draws of a token are given the tokens before it."""
    model, pipe = resources.transformer, resources.pipeline
    tokens = pipe(given, seed=seed, pixels=False, **how).tokens
    labels, head, scale = pipe.model.prepare(given), resources.head, how["guidance_scale"]
    place = repeat(torch.arange(tokens.shape[1], device=tokens.device), "n -> b n", b=len(given))
    branches = (labels, torch.full_like(labels, -1))
    made = [model.training_z(one, tokens.to(model.position.dtype)) for one in branches]
    z = rearrange(made, "branch b n d -> branch (b n) d")
    guidance = None if scale == 1 else torch.full((z.shape[1],), scale, device=z.device)
    values = []
    for other in (seed + SECOND_DRAW_SEED, seed + SECOND_DRAW_SEED + len(given)):
        noise = KeyedNoise(Keys.of(other, len(given), tokens.device), head.steps, head.dim).at(place)
        flat = (rearrange(x, "b n ... -> (b n) ...") for x in noise)
        states = z[0] if guidance is None else z
        values.append(sample(head, states, *flat, guidance=guidance, temperature=how["temperature"]).value)
    return (values[0] - values[1]).square().sum(-1), tokens


def target_figures(
    resources: ContinuousResources, setting: ContinuousSetting, asked: Sequence[GenerationRequest], seed: int = 0
) -> dict:
    """How much two draws of a token, given the same tokens, differ, on some of the requests.

    draw_spread: the median distance of the two over that of two tokens of these images taken at random: 0 where the target
    is sure of every token, about 1 where what is known tells it nothing. Medians, as single tokens can be far out.
    head_steps, values: of the model.
    """
    how, given = pipeline_arguments(resources, setting), [one.given for one in asked[:OBSERVED_IMAGES]]
    gaps, tokens = (_masked if resources.kind == MASKED else _causal)(resources, given, how, seed)
    flat = rearrange(tokens, "b n d -> (b n) d")
    apart = (flat - flat.roll(1, 0)).square().sum(-1).median()
    spread = round(float((gaps.median() / apart).sqrt()), 4) if len(gaps) and apart > 0 else None
    return {"draw_spread": spread, "head_steps": resources.head_steps, "values": resources.total}


def certainty(timed: TimedSetting) -> dict:
    """How sure the target is on the requests of a setting."""
    asked = [one for case in timed.cases for one in case]
    return target_figures(timed.resources, timed.setting, asked, timed.setting.seed)
