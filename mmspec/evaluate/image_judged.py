"""Quality of generated images: a method's against plain decoding's at equal number, and against what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.evaluate.bench import FAILURES, mean, middle
from mmspec.evaluate.image_certainty import target_figures
from mmspec.evaluate.image_methods import ImageMethod, Setting, make_draw, row_passes
from mmspec.evaluate.image_prompts import Asked
from mmspec.evaluate.image_quality import clip_score, distances, retrieval
from mmspec.evaluate.image_rows import about
from mmspec.evaluate.image_shelf import ImageShelf

BATCH = 16  # images a request; nothing is timed
HALVES = 2  # sets of plain images, each as large as a method's


@dataclass(slots=True)
class Gallery:
    """Images of one method. features: float32 [N, d] of CLIP.   judged: share of asked objects found.
    codes: int [N, n].   passes: target passes of each image.   emitted: values of each image.   drafter_passes: in all.
    """

    features: np.ndarray
    judged: float
    codes: np.ndarray
    passes: list[int]
    emitted: list[int]
    drafter_passes: int
    exact: bool


def gallery(
    method: ImageMethod, shelf: ImageShelf, setting: Setting, asked: Sequence[Asked], first_seed: int
) -> Gallery:
    """One image a prompt; image i has the seed first_seed + i, whatever stands beside it."""
    draw = make_draw(method, shelf, setting)
    images, codes, passes, emitted, drafted, exact = [], [], [], [], 0, True
    for start in range(0, len(asked), BATCH):
        part = asked[start : start + BATCH]
        out = draw(part, [first_seed + start + i for i in range(len(part))])
        images += out.images
        codes.append(out.tokens.numpy())
        passes += row_passes(out.stats)
        emitted += out.stats.emitted
        drafted += out.stats.drafter_passes
        exact = out.stats.exact
    features = shelf.scorer("clip").encode_images(images).numpy()
    judged = shelf.scorer("image_judge").agreement(images, [one.text for one in asked])
    return Gallery(features, judged, np.concatenate(codes), passes, emitted, drafted, exact)


class Reference:
    """What the images of every method in one setting are held against: two sets of plain ones, and the prompts.

    seed: of the bench.   row: figures of the setting: how sure the target is and how many codes it uses.
    """

    def __init__(self, plain: ImageMethod, shelf: ImageShelf, setting: Setting, asked: Sequence[Asked], seed: int):
        self.shelf, self.setting, self.asked, self.first = shelf, setting, asked, seed * (HALVES + 1) * len(asked)
        halves = [gallery(plain, shelf, setting, asked, self.first + half * len(asked)) for half in range(HALVES)]
        self.halves = tuple(one.features for one in halves)
        self.texts = [one.text for one in asked]
        self.prompts = shelf.scorer("clip").encode_texts(self.texts).numpy()
        codes = np.concatenate([one.codes for one in halves])
        self.row = target_figures(shelf, setting, asked, codes, seed)

    def judge(self, method: ImageMethod, shared: dict) -> dict:
        """The row of a method, from images of seeds that no plain image has; of plain decoding too."""
        row = {
            **about(method),
            "exact": None,
            **shared,
            **self.row,
            "failed": None,
            "requests": 1,
            "failed_requests": 0,
        }
        try:
            made = gallery(method, self.shelf, self.setting, self.asked, self.first + HALVES * len(self.asked))
        except (*FAILURES, ImportError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return row | {"failed": reason, "failed_requests": 1}
        compression = round(sum(made.emitted) / sum(made.passes), 3)
        return row | {
            "exact": made.exact,
            "tokens": mean(made.emitted),
            "target_passes": middle(made.passes, 1),
            "step_compression": compression,
            "accept_length": compression,
            "drafter_passes": made.drafter_passes,
            **self._figures(made),
        }

    def _figures(self, made: Gallery) -> dict:
        found = distances(made.features, self.halves)
        return {
            "frechet": _short(found.frechet),
            "frechet_interval": [_short(value) for value in found.frechet_interval],
            "frechet_ar": _short(found.own),
            "frechet_ratio": round(found.ratio, 3),
            "frechet_ratio_interval": [round(value, 3) for value in found.ratio_interval],
            "clip_score": round(clip_score(made.features, self.prompts), 2),
            "retrieval": round(retrieval(made.features, self.prompts, self.texts), 3),
            "judge": round(made.judged, 3),
        }


def _short(value: float) -> float:
    """Four significant digits: how large distances are depends on the features."""
    return float(f"{value:.4g}")
