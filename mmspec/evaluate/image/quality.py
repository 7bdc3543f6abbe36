"""Quality of generated images: a method's against plain decoding's at equal number, and against what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.evaluate.engine.ratios import mean, middle
from mmspec.evaluate.image.certainty import target_figures
from mmspec.evaluate.image.config import Config, ImageSetting
from mmspec.evaluate.image.methods import ImageMethod
from mmspec.evaluate.image.requests import Request, requests_of
from mmspec.evaluate.image.resources import ImageResources
from mmspec.evaluate.image.runner import make_draw, row_passes
from mmspec.evaluate.quality.alignment import clip_score, retrieval
from mmspec.evaluate.quality.frechet import distances

FIELDS = ("images", "frechet", "frechet_interval", "frechet_ar", "frechet_ratio", "frechet_ratio_interval", "clip_score",
          "retrieval", "judge")  # fmt: skip
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
    method: ImageMethod, resources: ImageResources, setting: ImageSetting, asked: Sequence[Request], first_seed: int
) -> Gallery:
    """One image a prompt; image i has the seed first_seed + i, whatever stands beside it."""
    draw = make_draw(method, resources, setting)
    images, codes, passes, emitted, drafted, exact = [], [], [], [], 0, True
    for start in range(0, len(asked), setting.batch):
        part = asked[start : start + setting.batch]
        out = draw(part, [first_seed + start + i for i in range(len(part))])
        images += out.images
        codes.append(out.tokens.numpy())
        passes += row_passes(out.stats)
        emitted += out.stats.emitted
        drafted += out.stats.drafter_passes
        exact = out.stats.exact
    features = resources.scorer("clip").encode_images(images).numpy()
    judged = resources.scorer("image_judge").agreement(images, [one.text for one in asked])
    return Gallery(features, judged, np.concatenate(codes), passes, emitted, drafted, exact)


class Reference:
    """What the images of every method in one setting are held against: two sets of plain ones, and the prompts.

    row: figures of the setting: how sure the target is and how many codes it uses.
    """

    def __init__(self, config: Config, resources: ImageResources, setting: ImageSetting):
        asked, plain = requests_of(setting.model, setting.prompts, setting.seed), config.rows[0]
        self.resources, self.setting, self.asked = resources, setting, asked
        self.first = setting.seed * (HALVES + 1) * len(asked)
        halves = [gallery(plain, resources, setting, asked, self.first + half * len(asked)) for half in range(HALVES)]
        self.halves = tuple(one.features for one in halves)
        self.texts = [one.text for one in asked]
        self.prompts = resources.scorer("clip").encode_texts(self.texts).numpy()
        codes = np.concatenate([one.codes for one in halves])
        self.row = target_figures(resources, setting, asked, codes, setting.seed)

    def judge(self, method: ImageMethod) -> dict:
        """The figures of a method, from images of seeds that no plain image has; of plain decoding too."""
        first = self.first + HALVES * len(self.asked)
        made = gallery(method, self.resources, self.setting, self.asked, first)
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
