"""Figures of continuous rows: the certainty of the target, and the costs of windows that predict their speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from einops import rearrange, repeat
from torch import Tensor

from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.evaluate.continuous.config import ContinuousSetting
from mmspec.evaluate.continuous.resources import ContinuousResources, PipelineArguments
from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.rows import identical
from mmspec.evaluate.engine.runs import TimedRun, completed
from mmspec.evaluate.engine.statistics import middle, pairs
from mmspec.evaluate.engine.suite import PLAIN
from mmspec.evaluate.model_kinds import MASKED
from mmspec.evaluate.pictures import GenerationRequest
from mmspec.imagegen.continuous.head_sampling.head import sample
from mmspec.imagegen.continuous.head_sampling.sampling import KeyedNoise, Noise
from mmspec.imagegen.continuous.masked_decoding import PlainSteps
from mmspec.imagegen.continuous.masked_target import MaskedTarget


def pipeline_arguments(resources: ContinuousResources, setting: ContinuousSetting) -> PipelineArguments:
    """Arguments of the pipeline that a setting decides."""
    drawn = {"guidance_scale": setting.guidance, "temperature": setting.temperature,
             "num_sampling_steps": resources.num_sampling_steps}  # fmt: skip
    return drawn | ({"num_iter": setting.num_iter or resources.total} if resources.kind == MASKED else {})


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
    resources: ContinuousResources,
    setting: ContinuousSetting,
    requests: Sequence[GenerationRequest],
    plain: object = None,
) -> dict:
    """How much two draws of a token, given the same tokens, differ, on some of the requests.

    draw_spread: the median distance of the two over that of two tokens of these images taken at random: 0 where the target
    is sure of every token, about 1 where what is known tells it nothing. Medians, as single tokens can be far out.
    head_steps, values: of the model.   plain: images, which tell nothing here.
    """
    how, given = pipeline_arguments(resources, setting), [one.given for one in requests[:OBSERVED_IMAGES]]
    gaps, tokens = (_masked if resources.kind == MASKED else _causal)(resources, given, how, setting.seed)
    flat = rearrange(tokens, "b n d -> (b n) d")
    apart = (flat - flat.roll(1, 0)).square().sum(-1).median()
    spread = round(float((gaps.median() / apart).sqrt()), 4) if len(gaps) and apart > 0 else None
    return {"draw_spread": spread, "head_steps": resources.head_steps, "values": resources.total}


def complete(timed: TimedSetting, rows: Mapping[str, dict]) -> None:
    """Adds to the rows of a setting what heads did, what was accepted, and what windows cost.

    cost_ratio: c, seconds of a drafter's pass with its heads over those of plain decoding's, in the same requests.
    predicted_speedup: gamma / (gamma c + 1), which a window that always advances gamma steps comes to whatever it accepts;
        for patched windows only.
    window_cost: v, seconds of a pass that judges a window over those of plain decoding's; 1 in that formula.
    predicted_in_full: with v, and with the passes that have no draft.
    identical: requests that gave plain decoding's tokens bit for bit, of methods that must.
    """
    plain = timed.results[PLAIN]
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        runs = completed(own)
        drafted, kept = (sum(run.more[name] for run in runs) for name in ("drafted", "kept"))
        both = list(pairs(plain, own))
        ratio = middle([cost for a, b in both if (cost := _cost(a, b)) is not None], 4)
        window = middle([_window_cost(a, b, method.gamma) for a, b in both], 3) if method.patch and ratio else None
        row["step_compression"] = row["accept_length"]
        row["head_calls"] = middle([run.more["head_calls"] for run in runs], 1)
        row["target_forwards"] = middle([run.more["forwards"] for run in runs], 1)
        row["drafter_passes"] = middle([run.drafter_passes for run in runs], 1)
        row["acceptance"] = round(kept / drafted, 4) if drafted else None
        row |= {"cost_ratio": ratio, "predicted_speedup": None, "window_cost": window, "predicted_in_full": None}
        if method.patch and ratio is not None:
            row["predicted_speedup"] = predicted_speedup(method.gamma, ratio)
        if window is not None:
            row["predicted_in_full"] = middle([_in_full(a, b, method.gamma, ratio, window) for a, b in both], 3)
        row["identical"] = identical(plain, own) if method.bitwise else None


def predicted_speedup(gamma: int, cost: float) -> float:
    """The speed-up of windows that each take gamma passes of the drafter and one of the target, and advance by gamma."""
    return round(gamma / (gamma * cost + 1), 3)


def _cost(plain: TimedRun, own: TimedRun) -> float | None:
    """c of one request: seconds of a pass of the drafter over seconds of a pass of plain decoding."""
    passes = plain.target_passes - 1  # the first is the prefill
    if not own.drafter_passes or passes < 1 or not plain.parts["target"]:
        return None
    return (own.parts["draft"] / own.drafter_passes) / (plain.parts["target"] / passes)


def _windows(run: TimedRun, gamma: int) -> tuple[int, int]:
    """Passes of a run without a draft, and those that judged one: every window but the last drafts gamma steps."""
    windows = -(-run.drafter_passes // gamma)
    return run.target_passes - windows, windows


def _window_cost(plain: TimedRun, own: TimedRun, gamma: int) -> float:
    """v of one request; its passes without a draft cost as much as plain decoding's."""
    each = plain.parts["target"] / (plain.target_passes - 1)
    alone, windows = _windows(own, gamma)
    return (own.parts["target"] / each - (alone - 1)) / windows


def _in_full(plain: TimedRun, own: TimedRun, gamma: int, cost: float, window: float) -> float:
    alone, windows = _windows(own, gamma)
    return plain.target_passes / (alone + own.drafter_passes * cost + windows * window)
