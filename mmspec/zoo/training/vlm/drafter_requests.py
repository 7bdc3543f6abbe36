"""Requests for the training of drafters: about the procedural world, and instructions for text models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mmspec.vlm.training.examples import Example
from mmspec.zoo.world.captions import REQUESTS, Turn, brief_turn, full_turn, imagined_turn, reversed_turn
from mmspec.zoo.world.documents import document_turn, page, sample_document
from mmspec.zoo.world.instructions import Instruction, instruction
from mmspec.zoo.world.questions import ORDINALS, many_turn, question
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, Scene, sample_scene

FIRST_SEED = 1 << 25  # apart from the scenes of tower and captioner
TEXT_SEED = FIRST_SEED + (1 << 22)
BLOCK = 12  # consecutive requests with similar numbers of pictures, so that batches have little padding


@dataclass(frozen=True, slots=True)
class _IndexedRequests:
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.example(index)

    def digest(self, index: int) -> str:
        """Return the name of the contents of a request, which are a function of the index."""
        return f"{self!r} {index}"

    def example(self, index: int) -> Example:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SceneRequests(_IndexedRequests):
    """Requests about pictures: captions, lists and questions; every eighth block shows two or three, every 24th six."""

    def example(self, index: int) -> Example:
        block = index // BLOCK
        if block % 24 == 23:
            return _many(index, 6)
        return _many(index, 2 + index % 2) if block % 8 == 7 else _one(index)


@dataclass(frozen=True, slots=True)
class TextRequests(_IndexedRequests):
    """Requests without a picture, for invented scenes."""

    def example(self, index: int) -> Example:
        seed = TEXT_SEED + index
        request, answer = imagined_turn(np.random.default_rng((seed, 6)), sample_scene(seed), seed)
        return Example(f"text-{index}", request, (), answer)


@dataclass(frozen=True, slots=True)
class DocumentRequests(_IndexedRequests):
    """Requests of `SceneRequests`, with documents to transcribe in every third block."""

    def example(self, index: int) -> Example:
        return _document(FIRST_SEED + index) if index // BLOCK % 3 == 1 else SceneRequests(self.count).example(index)


@dataclass(frozen=True, slots=True)
class HeldOutRequests(_IndexedRequests):
    """Requests for captions of held-out pictures, on which the acceptance length is measured during training."""

    count: int = 8

    def example(self, index: int) -> Example:
        scene = sample_scene(EVAL_SEEDS[0] + 2_000_000 + index)
        return Example(f"held-out-{index}", REQUESTS[index % len(REQUESTS)], (render(scene),))


@dataclass(frozen=True, slots=True)
class HeldOutDocumentRequests(_IndexedRequests):
    """Requests of `HeldOutRequests`; every other request shows a document."""

    count: int = 8

    def example(self, index: int) -> Example:
        return _document(EVAL_SEEDS[0] + 2_000_000 + index) if index % 2 else HeldOutRequests(self.count).example(index)


def _document(seed: int) -> Example:
    document = sample_document(seed)
    request, text = document_turn(np.random.default_rng((seed, 9)), document)
    return Example(f"document-{seed}", request, (page(document),), text)


def _one(index: int) -> Example:
    seed = FIRST_SEED + index
    rng = np.random.default_rng((seed, 9))
    scene = sample_scene(seed)
    style = rng.random()
    if style < 0.62:
        turn = full_turn(rng, scene, seed)
    elif style < 0.74:
        turn = reversed_turn(rng, scene, seed)
    elif style < 0.86:
        turn = brief_turn(rng, scene, seed)
    else:
        turn = question(scene, 0).turn
    return _example(index, (scene,), turn)


def _many(index: int, count: int) -> Example:
    scenes = tuple(sample_scene(FIRST_SEED + index + (number << 23)) for number in range(count))
    named = scenes[: len(ORDINALS)]  # requests name a picture by its ordinal, of which there are three
    return _example(index, scenes, many_turn(named, index))


def _example(index: int, scenes: tuple[Scene, ...], turn: Turn) -> Example:
    return Example(f"picture-{index}", turn[0], tuple(render(scene) for scene in scenes), turn[1])


HELD_OUT_SEED = 1 << 24
_WINDOW = 512  # requests are sorted by length within a window, so that batches have little padding


@dataclass(frozen=True, slots=True)
class InstructionRequests:
    """The first `count` distinct instructions from number `seed` on, as a sequence of examples."""

    count: int
    seed: int = 0
    _ordered: tuple[tuple[int, Instruction], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        chosen = [pair for _, pair in zip(range(self.count), _distinct(self.seed), strict=False)]
        windows = [sorted(chosen[i : i + _WINDOW], key=_length) for i in range(0, self.count, _WINDOW)]
        object.__setattr__(self, "_ordered", tuple(pair for window in windows for pair in window))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        number, request = self._ordered[index]
        return Example(f"instruction-{number}", request.text, history=request.history)


def held_out_instructions(count: int) -> InstructionRequests:
    """Return held-out requests, on which the acceptance length is measured during training."""
    return InstructionRequests(count, HELD_OUT_SEED)


def _distinct(seed: int) -> Iterator[tuple[int, Instruction]]:
    seen = set()
    number = seed
    while True:
        request = instruction(number)
        if (request.text, request.history) not in seen:
            seen.add((request.text, request.history))
            yield number, request
        number += 1


def _length(pair: tuple[int, Instruction]) -> int:
    request = pair[1]
    return len(request.text) + sum(len(text) for _, text in request.history)
