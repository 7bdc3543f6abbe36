"""How sure the target is of each value, and how much of its codebook it uses: sure targets flatter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.loop import NoDraft
from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.runs import completed
from mmspec.evaluate.image.config import ImageSetting
from mmspec.evaluate.image.methods import PLAIN
from mmspec.evaluate.image.resources import GenerationRequest, ImageResources


def codebook_usage(codes: np.ndarray, size: int) -> tuple[int, float]:
    """Of codes int [N, n] out of `size`: how many differ, and the perplexity of their frequencies."""
    share = np.bincount(codes.ravel(), minlength=size) / codes.size
    there = share[share > 0]
    return len(there), float(np.exp(-(there * np.log(there)).sum()))


OBSERVED_IMAGES = 8  # images that laws are watched on


class LawObserver(NoDraft):
    """Plain decoding of one request that notes the law of every value but the last.

    top1: float [B] per value, the law's largest probability.   margins: float [B] per value, by how much the largest
    log-weight is above the second.
    """

    def __init__(self) -> None:
        self.top1: list[Tensor] = []
        self.margins: list[Tensor] = []

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        scores = evidence.scores[:, 0]
        best = scores.topk(min(2, scores.shape[-1]), -1).values
        self.top1.append(scores.softmax(-1).amax(-1))
        self.margins.append(best[:, 0] - best[:, -1])


def observe_laws(
    resources: ImageResources, setting: ImageSetting, asked: Sequence[GenerationRequest], seed: int | Sequence[int]
) -> LawObserver:
    """Plain decoding of these prompts, watched."""
    watched = LawObserver()
    given = [one.given for one in asked]
    resources.pipeline(given, decoding=watched, seed=seed, pixels=False, **setting.arguments())
    return watched


def target_figures(
    resources: ImageResources,
    setting: ImageSetting,
    asked: Sequence[GenerationRequest],
    codes: np.ndarray,
    seed: int = 0,
) -> dict:
    """How sure the target is, and how many codes it uses. codes: int [N, n], of plain images.

    top1_probability: the mean largest probability of the laws that values are drawn from, over some of the prompts; at
    temperature 0 of the raw laws.
    """
    watched, size = observe_laws(resources, setting, asked[:OBSERVED_IMAGES], seed), resources.pipeline.model.codes
    used, perplexity = codebook_usage(codes, size)
    return {
        "top1_probability": round(float(torch.stack(watched.top1).mean()), 4),
        "codes_used": used,
        "codes": size,
        "code_perplexity": round(perplexity, 1),
    }


def certainty(timed: TimedSetting) -> dict:
    """How sure the target is on the requests of a setting, and how many codes plain decoding used."""
    codes = np.array([image for run in completed(timed.results[PLAIN]) for image in run.output])
    asked = [one for case in timed.cases for one in case]
    return target_figures(timed.resources, timed.setting, asked, codes, timed.setting.seed)


def margin_at(watched: LawObserver, row: int, place: int) -> float:
    """By how much the target preferred the value it took at `place`; infinite for the last one."""
    return float(watched.margins[place][row]) if place < len(watched.margins) else float("inf")
