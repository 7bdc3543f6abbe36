"""Pictures of a method against plain decoding's at equal number, and against what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmspec.evaluate.engine.runs import row_passes
from mmspec.evaluate.engine.statistics import mean, middle
from mmspec.evaluate.engine.suite import Method, Setting
from mmspec.evaluate.quality.features import clip_score, retrieval
from mmspec.evaluate.quality.frechet import distances

FIELDS = ("images", "frechet", "frechet_interval", "frechet_ar", "frechet_ratio", "frechet_ratio_interval", "clip_score",
          "retrieval", "judge")  # fmt: skip
QUALITY = (
    "Frechet distances in the zoo's CLIP space at equal numbers of images, to two sets of plain ones; intervals: "
    "90 % bootstrap; retrieval among 32 prompts; judge: share of asked objects whose color and shape are found"
)
HALVES = 2  # sets of plain images, each as large as a method's
DrawBatch = Callable[[Sequence[Any], Sequence[int]], Any]


@dataclass(slots=True)
class GeneratedImages:
    """Images of one method. features: float32 [N, d] of CLIP.   judged: share of asked objects found.
    tokens: [N, n] or [N, n, d].   passes: target passes of each image.   emitted: values of each image.
    drafter_passes: in all.
    """

    features: np.ndarray
    judged: float
    tokens: np.ndarray
    passes: list[int]
    emitted: list[int]
    drafter_passes: int
    exact: bool


class GalleryReference:
    """What the images of every method in one setting are held against: two sets of plain ones, and the requests.

    Image i of set k has the seed (seed (HALVES + 1) + k) N + i, whatever stands beside it.
    make: of a method, a function of (requests, seeds) that draws them and returns images, tokens and statistics.
    scorer: the zoo's "clip" or "image_judge" by name.   asked: requests, each with its `text`.
    figures: the setting's own row fields, from the plain tokens [N, n] or [N, n, d].
    """

    def __init__(
        self, plain: Method, setting: Setting, asked: Sequence[Any], make: Callable[[Any], DrawBatch],
        scorer: Callable[[str], Any], figures: Callable[[np.ndarray], dict],
    ):  # fmt: skip
        self.make, self.scorer, self.asked, self.batch = make, scorer, asked, setting.batch
        self.first = setting.seed * (HALVES + 1) * len(asked)
        self.plain = [self.drawn(plain, self.first + half * len(asked)) for half in range(HALVES)]
        self.texts = [one.text for one in asked]
        self.prompts = scorer("clip").encode_texts(self.texts).numpy()
        self.row = figures(np.concatenate([one.tokens for one in self.plain]))

    def drawn(self, method: Method, first_seed: int) -> GeneratedImages:
        """One image a request."""
        draw = self.make(method)
        images, tokens, passes, emitted, drafted, exact = [], [], [], [], 0, True
        for start in range(0, len(self.asked), self.batch):
            part = self.asked[start : start + self.batch]
            out = draw(part, [first_seed + start + i for i in range(len(part))])
            images += out.images
            tokens.append(out.tokens.numpy())
            passes += row_passes(out.stats)
            emitted += out.stats.emitted
            drafted += out.stats.drafter_passes
            exact = out.stats.exact
        features = self.scorer("clip").encode_images(images).numpy()
        judged = self.scorer("image_judge").agreement(images, [one.text for one in self.asked])
        return GeneratedImages(features, judged, np.concatenate(tokens), passes, emitted, drafted, exact)

    def judge(self, method: Method) -> dict:
        """The figures of a method, from images of seeds that no plain image has; of plain decoding too."""
        made = self.drawn(method, self.first + HALVES * len(self.asked))
        compression = round(sum(made.emitted) / sum(made.passes), 3)
        return {
            "exact": made.exact,
            "tokens": mean(made.emitted),
            "target_passes": middle(made.passes, 1),
            "step_compression": compression,
            "accept_length": compression,
            "drafter_passes": made.drafter_passes,
            **self._figures(made),
        }

    def _figures(self, made: GeneratedImages) -> dict:
        found = distances(made.features, tuple(one.features for one in self.plain))
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
