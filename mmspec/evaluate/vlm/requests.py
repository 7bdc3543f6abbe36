"""What benches ask of a vision-language model: questions about pictures and conversations, as inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count as counting
from typing import Any

from PIL.Image import Image
from torch import Tensor

from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.examples import encode as encode_examples
from mmspec.zoo.world.captions import REQUESTS, REVERSED_REQUESTS
from mmspec.zoo.world.documents import REQUESTS as TRANSCRIBE
from mmspec.zoo.world.documents import Document, page, sample_document
from mmspec.zoo.world.questions import ORDINALS, QUESTION_KINDS, question
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, Scene, sample_scene

# scenes the quality figures are not taken from
_FIRST = EVAL_SEEDS[0] + 1_000_000
_APART, _ALBUMS, _ASKED = 100_000, 40_000, 80_000  # scenes of a seed, and where albums and questions begin among them
_LONG = 5
_PICTURES_EVERY = 10
_REQUESTS = (*REQUESTS, *REVERSED_REQUESTS[:1])


@dataclass(frozen=True, slots=True)
class VlmPrompt:
    """A request, about some pictures or of text alone.

    Attributes:
        text: What the user writes.
        images: The pictures, shown before the first turn.
        history: Earlier turns as (role, text), the user's first.
    """

    text: str
    images: tuple[Image, ...] = ()
    history: tuple[tuple[str, str], ...] = ()


def held_out(count: int, seed: int = 0) -> list[VlmPrompt]:
    """`count` requests with long answers about scenes that no training saw; a pure function of its arguments.

    Scenes hold at least five objects, so that the answer is a long one. Every tenth request shows three pictures and
    asks about one of them.
    """
    _check(count, seed)
    scenes = _long_scenes(_FIRST + seed * _APART)
    return [_prompt(index, scenes) for index in range(count)]


def questions(count: int, seed: int = 0) -> list[VlmPrompt]:
    """`count` questions about one fact of a scene that no training saw, all kinds in turn; the fact is a word or two and
    the answer one short sentence."""
    _check(count, seed)
    scenes = [sample_scene(_FIRST + seed * _APART + _ASKED + index) for index in range(count)]
    kinds = [QUESTION_KINDS[index % len(QUESTION_KINDS)] for index in range(count)]
    asked = [question(scene, seed, kind) for scene, kind in zip(scenes, kinds, strict=True)]
    return [VlmPrompt(one.prompt, (render(scene),)) for one, scene in zip(asked, scenes, strict=True)]


def documents(count: int, seed: int = 0) -> list[VlmPrompt]:
    """`count` requests to transcribe a document that no training saw; what is right is known word by word."""
    shown = held_out_documents(count, seed)
    return [VlmPrompt(TRANSCRIBE[index % len(TRANSCRIBE)], (page(one),)) for index, one in enumerate(shown)]


def held_out_documents(count: int, seed: int = 0) -> list[Document]:
    """The documents that `documents` asks for."""
    _check(count, seed)
    return [sample_document(_FIRST + seed * _APART + index) for index in range(count)]


def albums(count: int, seed: int = 0, pictures: int = 16) -> list[VlmPrompt]:
    """`count` requests that show `pictures` scenes and ask for a caption of the only one, or of one of the first three."""
    _check(count, seed)
    scenes = _long_scenes(_FIRST + seed * _APART + _ALBUMS)
    wanted = [f"Describe the {name} picture." for name in ORDINALS[:pictures]] if pictures > 1 else REQUESTS
    return [
        VlmPrompt(wanted[index % len(wanted)], tuple(render(next(scenes)) for _ in range(pictures)))
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


def _prompt(index: int, scenes: Iterator[Scene]) -> VlmPrompt:
    if index % _PICTURES_EVERY == _PICTURES_EVERY - 1:
        which = ORDINALS[index // _PICTURES_EVERY % 3]
        return VlmPrompt(f"Describe the {which} picture.", tuple(render(next(scenes)) for _ in range(3)))
    return VlmPrompt(_REQUESTS[index % len(_REQUESTS)], (render(next(scenes)),))


def demo_scenes(count: int = 3) -> list[Scene]:
    """The held-out scenes of the demo."""
    scenes = _long_scenes(_FIRST - 100_000)
    return [next(scenes) for _ in range(count)]


def encode(processor: Any, prompts: Sequence[VlmPrompt]) -> dict[str, Tensor]:
    """Encode a batch of prompts, padded on the left, through the chat template.

    Args:
        processor: The model's processor; of a text-only model its tokenizer.
        prompts: The requests.

    Returns:
        The inputs of `generate`.

    Raises:
        ValueError: for a text that holds the image placeholder, for pictures beside a tokenizer, and for a conversation
            without a chat template, which could not tell who said what.
    """
    if not getattr(processor, "chat_template", None) and (prompt := next((p for p in prompts if p.history), None)):
        turns = 1 + sum(role == "user" for role, _ in prompt.history)
        raise ValueError(f"turns: expected one for a processor without a chat template, got {turns}, ask one by one")
    return encode_examples(
        processor,
        [
            Example(f"prompt {number}", prompt.text, prompt.images, history=prompt.history)
            for number, prompt in enumerate(prompts, 1)
        ],
    )


@dataclass(frozen=True, slots=True)
class VlmTask:
    """name: in tables.   make: requests from (count, seed).   new_tokens: the longest answer.

    natural: answers end where the model ends them; else the end-of-text token is suppressed.   pictures: per request.
    times: so many times the bench's number of prompts; short answers need more of them for a steady median.
    most: requests that there are; None for any number.
    """

    name: str
    make: Callable[[int, int], Sequence[VlmPrompt]]
    new_tokens: int
    natural: bool = True
    pictures: int = 1
    times: int = 1
    most: int | None = None


CAPTIONS = VlmTask("captions", held_out, 128)
QUESTIONS = VlmTask("questions", questions, 48, times=3)
ONE_WORD = VlmTask("one word", questions, 3, times=3)  # "It is red": hardly a draft fits in
DOCUMENTS = VlmTask("documents", documents, 144)
ENDLESS = VlmTask("endless captions", held_out, 128, natural=False)
ALBUMS = tuple(
    VlmTask(f"{count} picture{'s' * (count > 1)}", partial(albums, pictures=count), 128, pictures=count)
    for count in (1, 4, 8, 16)
)


def encode_turns(
    processor: Any, turns: Sequence[str], answers: Sequence[str], pictures: tuple[Image, ...]
) -> dict[str, Tensor]:
    """Inputs of `generate` for the last of the turns, behind those before it and their answers; pictures stand before the
    first.

    Raises:
        ValueError: as `encode`; ImageError, which is one, for pictures that are none.
    """
    history = [
        part
        for turn, answer in zip(turns[:-1], answers, strict=False)
        for part in (("user", turn), ("assistant", answer))
    ]
    return encode(processor, [VlmPrompt(turns[-1], pictures, tuple(history))])
