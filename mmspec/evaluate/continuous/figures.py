"""Figures of continuous rows: the certainty of the target, and the costs of windows that predict their speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from einops import rearrange, repeat
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.evaluate.continuous.config import ContinuousSetting
from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.rows import identical
from mmspec.evaluate.engine.runs import completed
from mmspec.evaluate.engine.statistics import middle, pairs
from mmspec.evaluate.pictures import GenerationRequest
from mmspec.imagegen.continuous.head_sampling.head import sample
from mmspec.imagegen.continuous.head_sampling.sampling import KeyedNoise, Noise
from mmspec.imagegen.continuous.masked_decoding import PlainSteps
from mmspec.imagegen.continuous.masked_target import MaskedTarget
from mmspec.run.continuous_models import ContinuousResources, PipelineArguments
from mmspec.run.decoding_options import PLAIN
from mmspec.run.model_kinds import MASKED
from mmspec.run.timed_run import TimedRun


def pipeline_arguments(resources: ContinuousResources, setting: ContinuousSetting) -> PipelineArguments:
    drawn = {
        "guidance_scale": setting.guidance,
        "temperature": setting.temperature,
        "num_sampling_steps": resources.num_sampling_steps,
    }
    return drawn | ({"num_iter": setting.num_iter or resources.total} if resources.kind == MASKED else {})


OBSERVED_IMAGES = 8  # images whose tokens are drawn twice
SECOND_DRAW_SEED = 1 << 30  # added to the seed for the second draw


class PairedDraws(PlainSteps):
    """Plain decoding of a request that draws every token after the first step twice, the second time with the noise
    `other`. `gaps` has the squared distances of the two draws, float32 [n] per round."""

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


def _masked(resources: ContinuousResources, prompts: list, how: dict, seed: int) -> tuple[Tensor, Tensor]:
    """Return the squared distances of two draws of the same tokens, and the tokens."""
    head = resources.head
    twice = PairedDraws(
        KeyedNoise(
            Keys.of(seed + SECOND_DRAW_SEED, len(prompts), resources.pipeline.model.device), head.steps, head.dim
        )
    )
    tokens = resources.pipeline(prompts, decoding=twice, seed=seed, pixels=False, **how).tokens
    return torch.cat(twice.gaps) if twice.gaps else tokens.new_zeros(0), tokens


@torch.no_grad()
def _causal(resources: ContinuousResources, prompts: list, how: dict, seed: int) -> tuple[Tensor, Tensor]:
    """Return the same as `_masked`; both draws of a token follow the same earlier tokens."""
    model, pipe = resources.transformer, resources.pipeline
    tokens = pipe(prompts, seed=seed, pixels=False, **how).tokens
    labels, head, scale = pipe.model.prepare(prompts), resources.head, how["guidance_scale"]
    place = repeat(torch.arange(tokens.shape[1], device=tokens.device), "n -> b n", b=len(prompts))
    branches = (labels, torch.full_like(labels, -1))
    conditions = [model.training_z(branch, tokens.to(model.position.dtype)) for branch in branches]
    z = rearrange(conditions, "branch b n d -> branch (b n) d")
    guidance = None if scale == 1 else torch.full((z.shape[1],), scale, device=z.device)
    values = []
    for other in (seed + SECOND_DRAW_SEED, seed + SECOND_DRAW_SEED + len(prompts)):
        noise = KeyedNoise(Keys.of(other, len(prompts), tokens.device), head.steps, head.dim).at(place)
        flat = (rearrange(x, "b n ... -> (b n) ...") for x in noise)
        states = z[0] if guidance is None else z
        values.append(sample(head, states, *flat, guidance=guidance, temperature=how["temperature"]).value)
    return (values[0] - values[1]).square().sum(-1), tokens


def target_figures(
    resources: ContinuousResources,
    setting: ContinuousSetting,
    requests: Sequence[GenerationRequest],
    plain: object = None,
) -> dict:
    """Measure how much two draws of a token differ, given the same context, on some of the requests. `draw_spread` is
    the median distance of the two draws over that of two random tokens of these images. It is 0 where the target is
    certain of every token, and about 1 where the context tells it nothing. Medians are used since single tokens can be
    outliers. `plain` is unused; `head_steps` and `values` are returned too."""
    how, prompts = pipeline_arguments(resources, setting), [request.prompt for request in requests[:OBSERVED_IMAGES]]
    gaps, tokens = (_masked if resources.kind == MASKED else _causal)(resources, prompts, how, setting.seed)
    flat = rearrange(tokens, "b n d -> (b n) d")
    apart = (flat - flat.roll(1, 0)).square().sum(-1).median()
    spread = round(float((gaps.median() / apart).sqrt()), 4) if len(gaps) and apart > 0 else None
    return {"draw_spread": spread, "head_steps": resources.head_steps, "values": resources.total}


def complete(timed: TimedSetting, rows: Mapping[str, dict]) -> None:
    """Add to the rows of a setting the calls of heads, the acceptance, and the costs of windows.

    `cost_ratio` (c) is the seconds of a drafter's pass with its heads over those of plain decoding's.
    `predicted_speedup` is gamma / (gamma c + 1), the speed-up of patched windows, which always advance by gamma.
    `window_cost` (v) is the seconds of a pass over a window over those of plain decoding's. `predicted_in_full` adds v
    and the passes without a draft. `identical` counts requests with plain decoding's exact tokens."""
    plain = timed.results[PLAIN]
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        runs = completed(own)
        drafted, accepted = (sum(run.more[name] for run in runs) for name in ("drafted", "kept"))
        both = list(pairs(plain, own))
        ratio = middle([cost for a, b in both if (cost := _cost(a, b)) is not None], 4)
        window = middle([_window_cost(a, b, method.gamma) for a, b in both], 3) if method.patch and ratio else None
        row["step_compression"] = row["accept_length"]
        row["head_calls"] = middle([run.more["head_calls"] for run in runs], 1)
        row["target_forwards"] = middle([run.more["forwards"] for run in runs], 1)
        row["drafter_passes"] = middle([run.drafter_passes for run in runs], 1)
        row["acceptance"] = round(accepted / drafted, 4) if drafted else None
        row |= {"cost_ratio": ratio, "predicted_speedup": None, "window_cost": window, "predicted_in_full": None}
        if method.patch and ratio is not None:
            row["predicted_speedup"] = predicted_speedup(method.gamma, ratio)
        if window is not None:
            row["predicted_in_full"] = middle([_in_full(a, b, method.gamma, ratio, window) for a, b in both], 3)
        row["identical"] = identical(plain, own) if method.bitwise else None


def predicted_speedup(gamma: int, cost: float) -> float:
    """Return the speed-up of windows of gamma drafter passes and a target pass that advance by gamma tokens."""
    return round(gamma / (gamma * cost + 1), 3)


def _cost(plain: TimedRun, own: TimedRun) -> float | None:
    """Return c of a request: the seconds of a drafter's pass over those of a pass of plain decoding."""
    passes = plain.target_passes - 1  # the first is the prefill
    if not own.drafter_passes or passes < 1 or not plain.parts["target"]:
        return None
    return (own.parts["draft"] / own.drafter_passes) / (plain.parts["target"] / passes)


def _windows(run: TimedRun, gamma: int) -> tuple[int, int]:
    """Return the passes without a draft and the passes over a window; all windows but the last draft gamma steps."""
    windows = -(-run.drafter_passes // gamma)
    return run.target_passes - windows, windows


def _window_cost(plain: TimedRun, own: TimedRun, gamma: int) -> float:
    """Return v of a request; its passes without a draft cost as much as plain decoding's."""
    each = plain.parts["target"] / (plain.target_passes - 1)
    alone, windows = _windows(own, gamma)
    return (own.parts["target"] / each - (alone - 1)) / windows


def _in_full(plain: TimedRun, own: TimedRun, gamma: int, cost: float, window: float) -> float:
    alone, windows = _windows(own, gamma)
    return plain.target_passes / (alone + own.drafter_passes * cost + windows * window)
