"""Galleries: which seeds their pictures have, and what figures of equal and of other pictures say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mmspec.core.round.stats import Stats
from mmspec.evaluate.engine.suite import Method, Setting
from mmspec.evaluate.gallery import FIELDS, GalleryReference

ASKED = [SimpleNamespace(text=f"prompt {i}") for i in range(12)]
PLAIN, SHIFTED = Method("ar", "plain"), Method("off", "shifted")


class Scorer:
    """Features are the pictures themselves; half of what is asked for is found."""

    def encode_images(self, images: list) -> torch.Tensor:
        return torch.stack(images)

    def encode_texts(self, texts: list[str]) -> torch.Tensor:
        return torch.eye(12, 3)[: len(texts)]

    def agreement(self, images: list, asked: list[str]) -> float:
        return 0.5 if len(images) == len(asked) else 0.0


def galleries(seeds: list[list[int]], seed: int = 0) -> GalleryReference:
    def make(method: Method):
        def draw(asked: list, given: list[int]) -> SimpleNamespace:
            seeds.append(list(given))
            images = [torch.randn(3, generator=torch.Generator().manual_seed(entry)) for entry in given]
            images = [image + (5 if method is SHIFTED else 0) for image in images]
            rows = len(asked)
            stats = Stats(exact=method is PLAIN, accepted=[[1] * rows, [1] * rows], emitted=[6] * rows)
            return SimpleNamespace(images=images, tokens=torch.zeros(rows, 6), stats=stats)

        return draw

    setting = Setting(batch=5, temperature=1.0, prompts=len(ASKED), seed=seed)
    return GalleryReference(PLAIN, setting, ASKED, make, lambda name: Scorer(), lambda tokens: {"shape": tokens.shape})


@pytest.mark.parametrize("seed", [0, 2])
def test_every_picture_has_a_seed_of_its_own(seed: int) -> None:
    seeds: list[list[int]] = []
    galleries(seeds, seed).judge(PLAIN)
    assert [len(part) for part in seeds] == [5, 5, 2] * 3
    assert sorted(sum(seeds, [])) == list(range(seed * 36, seed * 36 + 36))


def test_other_pictures_are_far_and_report_their_cost() -> None:
    held = galleries([])
    assert held.row == {"shape": (24, 6)}  # the tokens of both plain sets
    same, other = held.judge(PLAIN), held.judge(SHIFTED)
    assert set(FIELDS) - {"images"} <= same.keys() and same["judge"] == 0.5
    assert other["frechet"] > 70 > 5 > same["frechet"] and same["frechet_ar"] == other["frechet_ar"]
    assert (same["exact"], other["exact"]) == (True, False)
    assert same["step_compression"] == 3 and same["target_passes"] == 2 and same["tokens"] == 6
