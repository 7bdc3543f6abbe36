"""How sure the target is of each value it draws: sure targets flatter every method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.loop import NoDraft
from mmspec.core.verdict import Verdict
from mmspec.evaluate.image_methods import Setting
from mmspec.evaluate.image_prompts import Asked
from mmspec.evaluate.image_quality import usage
from mmspec.evaluate.image_shelf import ImageShelf

SOME = 8  # images that laws are watched on


class Watched(NoDraft):
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


def watch(shelf: ImageShelf, setting: Setting, asked: Sequence[Asked], seed: int | Sequence[int]) -> Watched:
    """Plain decoding of these prompts, watched."""
    watched = Watched()
    given = [one.given for one in asked]
    shelf.pipeline(given, decoding=watched, seed=seed, pixels=False, **setting.arguments())
    return watched


def target_figures(
    shelf: ImageShelf, setting: Setting, asked: Sequence[Asked], codes: np.ndarray, seed: int = 0
) -> dict:
    """How sure the target is, and how many codes it uses. codes: int [N, n], of plain images.

    top1_probability: the mean largest probability of the laws that values are drawn from, over some of the prompts; at
    temperature 0 of the raw laws.
    """
    watched, size = watch(shelf, setting, asked[:SOME], seed), shelf.pipeline.model.codes
    used, perplexity = usage(codes, size)
    return {
        "top1_probability": round(float(torch.stack(watched.top1).mean()), 4),
        "codes_used": used,
        "codes": size,
        "code_perplexity": round(perplexity, 1),
    }


def margin_at(watched: Watched, row: int, place: int) -> float:
    """By how much the target preferred the value it took at `place`; infinite for the last one."""
    return float(watched.margins[place][row]) if place < len(watched.margins) else float("inf")
