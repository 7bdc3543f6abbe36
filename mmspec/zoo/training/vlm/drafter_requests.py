"""Requests about the procedural world that drafters are trained on: pure functions of an index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmspec.vlm.training.examples import Example
from mmspec.zoo.world.captions import (
    BRIEF_REQUESTS,
    IMAGINE_REQUESTS,
    REQUESTS,
    REVERSED_REQUESTS,
    brief_caption,
    caption,
)
from mmspec.zoo.world.documents import REQUESTS as TRANSCRIBE
from mmspec.zoo.world.documents import page, sample_document
from mmspec.zoo.world.language import choose
from mmspec.zoo.world.questions import ORDINALS, many_turn, question
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, Scene, sample_scene

FIRST_SEED = 1 << 25  # far from the tower's and the captioner's scenes
TEXT_SEED = FIRST_SEED + (1 << 22)
BLOCK = 12  # requests in a row with about as many pictures each, so that batches waste little padding


@dataclass(frozen=True, slots=True)
class _IndexedRequests:
    """The first `count` of an endless row of requests."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.example(index)

    def example(self, index: int) -> Example:
        """The request of an index."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SceneRequests(_IndexedRequests):
    """Requests about pictures: captions, lists and questions; every eighth block shows two or three, one in 24 six."""

    def example(self, index: int) -> Example:
        block = index // BLOCK
        if block % 24 == 23:
            return _many(index, 6)
        return _many(index, 2 + index % 2) if block % 8 == 7 else _one(index)


@dataclass(frozen=True, slots=True)
class TextRequests(_IndexedRequests):
    """Requests without a picture: scenes to be made up."""

    def example(self, index: int) -> Example:
        seed = TEXT_SEED + index
        request = choose(np.random.default_rng((seed, 6)), IMAGINE_REQUESTS, 0.4)
        return Example(f"text-{index}", request, (), caption(sample_scene(seed), seed))


@dataclass(frozen=True, slots=True)
class DocumentRequests(_IndexedRequests):
    """As `SceneRequests`, but every third block shows documents, to be transcribed."""

    def example(self, index: int) -> Example:
        return _document(FIRST_SEED + index) if index // BLOCK % 3 == 1 else SceneRequests(self.count).example(index)


@dataclass(frozen=True, slots=True)
class HeldOutRequests(_IndexedRequests):
    """Requests for captions of pictures that no training sees: what acceptance is measured on while training."""

    count: int = 8

    def example(self, index: int) -> Example:
        scene = sample_scene(EVAL_SEEDS[0] + 2_000_000 + index)
        return Example(f"held-out-{index}", REQUESTS[index % len(REQUESTS)], (render(scene),))


@dataclass(frozen=True, slots=True)
class HeldOutDocumentRequests(_IndexedRequests):
    """As `HeldOutRequests`, every other request shows a document."""

    count: int = 8

    def example(self, index: int) -> Example:
        return _document(EVAL_SEEDS[0] + 2_000_000 + index) if index % 2 else HeldOutRequests(self.count).example(index)


def _document(seed: int) -> Example:
    document = sample_document(seed)
    request = choose(np.random.default_rng((seed, 9)), TRANSCRIBE, 0.4)
    return Example(f"document-{seed}", request, (page(document),), document.text)


def _one(index: int) -> Example:
    seed = FIRST_SEED + index
    rng = np.random.default_rng((seed, 9))
    scene = sample_scene(seed)
    style = rng.random()
    if style < 0.62:
        turn = choose(rng, REQUESTS, 0.4), caption(scene, seed)
    elif style < 0.74:
        turn = choose(rng, REVERSED_REQUESTS), caption(scene, seed, reverse=True)
    elif style < 0.86:
        turn = choose(rng, BRIEF_REQUESTS, 0.4), brief_caption(scene, seed)
    else:
        asked = question(scene, 0)
        turn = asked.prompt, asked.answer
    return _example(index, (scene,), turn)


def _many(index: int, count: int) -> Example:
    scenes = tuple(sample_scene(FIRST_SEED + index + (number << 23)) for number in range(count))
    named = scenes[: len(ORDINALS)]  # requests name a picture by its ordinal, and there are only so many
    return _example(index, scenes, many_turn(named, index))


def _example(index: int, scenes: tuple[Scene, ...], turn: tuple[str, str]) -> Example:
    return Example(f"picture-{index}", turn[0], tuple(render(scene) for scene in scenes), turn[1])
