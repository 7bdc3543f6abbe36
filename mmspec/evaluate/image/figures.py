"""Figures of drawn codes: the cost of a call, and the certainty of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.loop import NoDraft
from mmspec.evaluate.image.config import ImageSetting
from mmspec.evaluate.pictures import GenerationRequest
from mmspec.imagegen.base_pipeline import ImageOutput
from mmspec.run.image_models import ImageResources
from mmspec.run.timed_run import TimedRun, row_passes, timed_run


def codes_run(out: ImageOutput, seconds: float) -> TimedRun:
    return timed_run(out.stats, tuple(map(tuple, out.tokens.tolist())), seconds, row_passes=row_passes(out.stats))


def codebook_usage(codes: np.ndarray, size: int) -> tuple[int, float]:
    """Return how many of `size` codes appear in codes int [N, n], and the perplexity of their frequencies."""
    share = np.bincount(codes.ravel(), minlength=size) / codes.size
    there = share[share > 0]
    return len(there), float(np.exp(-(there * np.log(there)).sum()))


OBSERVED_IMAGES = 8  # images whose distributions are recorded


class LawObserver(NoDraft):
    """Plain decoding of a request that records the distribution of every value but the last. `top1` has the largest
    probability and `margins` the largest log-weight less the second, float32 [B] per value."""

    def __init__(self) -> None:
        self.top1: list[Tensor] = []
        self.margins: list[Tensor] = []

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        scores = evidence.scores[:, 0]
        best = scores.topk(min(2, scores.shape[-1]), -1).values
        self.top1.append(scores.softmax(-1).amax(-1))
        self.margins.append(best[:, 0] - best[:, -1])


def observe_laws(
    resources: ImageResources, setting: ImageSetting, requests: Sequence[GenerationRequest], seed: int | Sequence[int]
) -> LawObserver:
    observer = LawObserver()
    prompts = [request.prompt for request in requests]
    resources.pipeline(prompts, decoding=observer, seed=seed, pixels=False, **setting.arguments())
    return observer


def target_figures(
    resources: ImageResources, setting: ImageSetting, requests: Sequence[GenerationRequest], plain: Sequence[Any]
) -> dict:
    """Return the certainty of the target on some of the requests, and its use of the codebook by the codes int [N, n]
    of plain images. `top1_probability` is the mean largest probability, at temperature 0 that of the unscaled
    distributions. `codes_used`, `codes` and `code_perplexity` describe the codebook."""
    observer = observe_laws(resources, setting, requests[:OBSERVED_IMAGES], setting.seed)
    size = resources.model.codes
    used, perplexity = codebook_usage(np.asarray(plain), size)
    return {
        "top1_probability": round(float(torch.stack(observer.top1).mean()), 4),
        "codes_used": used,
        "codes": size,
        "code_perplexity": round(perplexity, 1),
    }


def margin_at(observer: LawObserver, row: int, place: int) -> float:
    """Return by how much the target preferred its value at `place`; infinite for the last value."""
    return float(observer.margins[place][row]) if place < len(observer.margins) else float("inf")
