"""What benches ask of a vision-language model: held-out questions about pictures, as model inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count as counting
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.examples import encode as encode_examples
from mmspec.zoo.world.captions import REQUESTS, REVERSED_REQUESTS
from mmspec.zoo.world.documents import REQUESTS as TRANSCRIBE
from mmspec.zoo.world.documents import Document, sample_document
from mmspec.zoo.world.many import ORDINALS
from mmspec.zoo.world.pages import page
from mmspec.zoo.world.questions import QUESTION_KINDS, question
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, Scene, sample_scene

if TYPE_CHECKING:
    from mmspec.evaluate.vlm.config import VlmSetting
    from mmspec.evaluate.vlm.resources import VlmResources

# scenes the quality figures are not taken from
_FIRST = EVAL_SEEDS[0] + 1_000_000
_APART, _ALBUMS, _ASKED = 100_000, 40_000, 80_000  # scenes of a seed, and where albums and questions begin among them
_LONG = 5
_PICTURES_EVERY = 10
_REQUESTS = (*REQUESTS, *REVERSED_REQUESTS[:1])


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request about some pictures."""

    text: str
    images: tuple[Image, ...]


def held_out(count: int, seed: int = 0) -> list[Prompt]:
    """`count` requests with long answers about scenes that no training saw; a pure function of its arguments.

    Scenes hold at least five objects, so that the answer is a long one. Every tenth request shows three pictures and
    asks about one of them.
    """
    _check(count, seed)
    scenes = _long_scenes(_FIRST + seed * _APART)
    return [_prompt(index, scenes) for index in range(count)]


def questions(count: int, seed: int = 0) -> list[Prompt]:
    """`count` questions about one fact of a scene that no training saw, all kinds in turn; the fact is a word or two and
    the answer one short sentence."""
    _check(count, seed)
    scenes = [sample_scene(_FIRST + seed * _APART + _ASKED + index) for index in range(count)]
    kinds = [QUESTION_KINDS[index % len(QUESTION_KINDS)] for index in range(count)]
    asked = [question(scene, seed, kind) for scene, kind in zip(scenes, kinds, strict=True)]
    return [Prompt(one.prompt, (render(scene),)) for one, scene in zip(asked, scenes, strict=True)]


def documents(count: int, seed: int = 0) -> list[Prompt]:
    """`count` requests to transcribe a document that no training saw; what is right is known word by word."""
    shown = held_out_documents(count, seed)
    return [Prompt(TRANSCRIBE[index % len(TRANSCRIBE)], (page(one),)) for index, one in enumerate(shown)]


def held_out_documents(count: int, seed: int = 0) -> list[Document]:
    """The documents that `documents` asks for."""
    _check(count, seed)
    return [sample_document(_FIRST + seed * _APART + index) for index in range(count)]


def albums(count: int, seed: int = 0, pictures: int = 16) -> list[Prompt]:
    """`count` requests that show `pictures` scenes and ask for a caption of the only one, or of one of the first three."""
    _check(count, seed)
    scenes = _long_scenes(_FIRST + seed * _APART + _ALBUMS)
    wanted = [f"Describe the {name} picture." for name in ORDINALS[:pictures]] if pictures > 1 else REQUESTS
    return [
        Prompt(wanted[index % len(wanted)], tuple(render(next(scenes)) for _ in range(pictures)))
        for index in range(count)
    ]


def long_scenes(count: int, seed: int = 0) -> list[Scene]:
    """`count` scenes of five objects and more that no training saw, those that `held_out` asks about first."""
    _check(count, seed)
    scenes = _long_scenes(_FIRST + seed * _APART)
    return [next(scenes) for _ in range(count)]


def _check(count: int, seed: int) -> None:
    if count < 1:
        raise ValueError(f"--prompts: expected at least 1, got {count}, ask for more")
    if not 0 <= seed < 10_000:  # what is behind are no held-out scenes
        raise ValueError(f"--seed: expected 0 to 9999, got {seed}, pick another")


def _long_scenes(first: int) -> Iterator[Scene]:
    return (scene for scene in map(sample_scene, counting(first)) if len(scene.things) >= _LONG)


def _prompt(index: int, scenes: Iterator[Scene]) -> Prompt:
    if index % _PICTURES_EVERY == _PICTURES_EVERY - 1:
        which = ORDINALS[index // _PICTURES_EVERY % 3]
        return Prompt(f"Describe the {which} picture.", tuple(render(next(scenes)) for _ in range(3)))
    return Prompt(_REQUESTS[index % len(_REQUESTS)], (render(next(scenes)),))


def demo_scenes(count: int = 3) -> list[Scene]:
    """The held-out scenes of the demo."""
    scenes = _long_scenes(_FIRST - 100_000)
    return [next(scenes) for _ in range(count)]


def encode(processor: Any, prompts: Sequence[Prompt]) -> dict:
    """Model inputs of a batch of prompts, padded on the left, through the processor's own chat template.

    Raises ValueError for a text that holds the processor's image placeholder.
    """
    examples = [Example(f"prompt {number}", prompt.text, prompt.images) for number, prompt in enumerate(prompts, 1)]
    return encode_examples(processor, examples)


@dataclass(frozen=True, slots=True)
class Task:
    """name: in tables.   make: requests from (count, seed).   new_tokens: the longest answer.

    natural: answers end where the model ends them; else the end-of-text token is suppressed.   pictures: per request.
    times: so many times the bench's number of prompts; short answers need more of them for a steady median.
    """

    name: str
    make: Callable[[int, int], Sequence[Prompt]]
    new_tokens: int
    natural: bool = True
    pictures: int = 1
    times: int = 1


CAPTIONS = Task("captions", held_out, 128)
QUESTIONS = Task("questions", questions, 48, times=3)
ONE_WORD = Task("one word", questions, 3, times=3)  # "It is red": hardly a draft fits in
DOCUMENTS = Task("documents", documents, 144)
ENDLESS = Task("endless captions", held_out, 128, natural=False)
ALBUMS = tuple(
    Task(f"{count} picture{'s' * (count > 1)}", partial(albums, pictures=count), 128, pictures=count)
    for count in (1, 4, 8, 16)
)


def cases(resources: VlmResources, setting: VlmSetting) -> list[dict]:
    """The inputs of every batch of a setting."""
    asked = list(setting.task.make(setting.prompts, setting.seed))
    return [encode(resources.processor, group) for group in setting.batches(asked)]
