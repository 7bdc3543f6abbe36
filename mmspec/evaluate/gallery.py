"""Pictures of a method, compared with plain decoding's at equal number and with their prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmspec.evaluate.engine.statistics import mean, middle
from mmspec.evaluate.engine.suite import Method, Setting
from mmspec.evaluate.quality.features import clip_score, retrieval
from mmspec.evaluate.quality.frechet import distances
from mmspec.run.timed_run import row_passes

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
    """The images of a method."""

    features: np.ndarray  # float32 [N, d] of CLIP
    judged: float  # the share of requested objects that the judge recognises
    tokens: np.ndarray  # [N, n] or [N, n, d]
    passes: list[int]  # the target passes of each image
    emitted: list[int]  # the values of each image
    drafter_passes: int  # over all images
    exact: bool


class GalleryReference:
    """The reference of a setting: two sets of plain images, and the requests. Image i of set k has the seed (seed
    (HALVES + 1) + k) N + i, independent of its batch. `make` turns a method into a function of (requests, seeds), which
    returns images, tokens and statistics. `scorer` returns the zoo's "clip" or "image_judge". `figures` gives the
    setting's own row fields from the plain tokens [N, n] or [N, n, d]."""

    def __init__(
        self,
        plain: Method,
        setting: Setting,
        requests: Sequence[Any],
        make: Callable[[Any], DrawBatch],
        scorer: Callable[[str], Any],
        figures: Callable[[np.ndarray], dict],
    ):
        self.make, self.scorer, self.requests, self.batch = make, scorer, requests, setting.batch
        self.first = setting.seed * (HALVES + 1) * len(requests)
        self.plain = [self.drawn(plain, self.first + half * len(requests)) for half in range(HALVES)]
        self.texts = [request.text for request in requests]
        self.prompts = scorer("clip").encode_texts(self.texts).numpy()
        self.row = figures(np.concatenate([image_set.tokens for image_set in self.plain]))

    def drawn(self, method: Method, first_seed: int) -> GeneratedImages:
        draw = self.make(method)
        images, tokens, passes, emitted, drafted, exact = [], [], [], [], 0, True
        for start in range(0, len(self.requests), self.batch):
            part = self.requests[start : start + self.batch]
            out = draw(part, [first_seed + start + i for i in range(len(part))])
            images += out.images
            values = out.tokens.cpu()
            tokens.append((values.float() if values.is_floating_point() else values).numpy())
            passes += row_passes(out.stats)
            emitted += out.stats.emitted
            drafted += out.stats.drafter_passes
            exact = out.stats.exact
        features = self.scorer("clip").encode_images(images).numpy()
        judged = self.scorer("image_judge").agreement(images, [request.text for request in self.requests])
        return GeneratedImages(features, judged, np.concatenate(tokens), passes, emitted, drafted, exact)

    def judge(self, method: Method) -> dict:
        """Return the figures of a method, from images whose seeds no plain image uses."""
        images = self.drawn(method, self.first + HALVES * len(self.requests))
        compression = round(sum(images.emitted) / sum(images.passes), 3)
        return {
            "exact": images.exact,
            "tokens": mean(images.emitted),
            "target_passes": middle(images.passes, 1),
            "step_compression": compression,
            "accept_length": compression,
            "drafter_passes": images.drafter_passes,
            **self._figures(images),
        }

    def _figures(self, images: GeneratedImages) -> dict:
        measured = distances(images.features, tuple(image_set.features for image_set in self.plain))
        return {
            "frechet": _short(measured.frechet),
            "frechet_interval": [_short(value) for value in measured.frechet_interval],
            "frechet_ar": _short(measured.own),
            "frechet_ratio": round(measured.ratio, 3),
            "frechet_ratio_interval": [round(value, 3) for value in measured.ratio_interval],
            "clip_score": round(clip_score(images.features, self.prompts), 2),
            "retrieval": round(retrieval(images.features, self.prompts, self.texts), 3),
            "judge": round(images.judged, 3),
        }


def _short(value: float) -> float:
    """Return four significant digits, since the size of distances depends on the features."""
    return float(f"{value:.4g}")
