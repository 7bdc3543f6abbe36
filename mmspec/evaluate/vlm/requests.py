"""Requests to models for text: scenes and documents of the zoo's world, real prompts, and the inputs made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count as counting
from pathlib import Path
from typing import Any

from PIL.Image import Image
from torch import Tensor

from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.io.readers import read_json
from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.examples import encode as encode_examples
from mmspec.zoo.world.captions import REQUESTS, REVERSED_REQUESTS
from mmspec.zoo.world.documents import REQUESTS as TRANSCRIBE
from mmspec.zoo.world.documents import Document, page, sample_document
from mmspec.zoo.world.instructions import INSTRUCTION_KINDS, InstructionKind
from mmspec.zoo.world.questions import ORDINALS, QUESTION_KINDS, question
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, Scene, sample_scene

# scenes the quality figures are not taken from
_FIRST = EVAL_SEEDS[0] + 1_000_000
_APART, _ALBUMS, _ASKED = 100_000, 40_000, 80_000  # scenes of a seed, and where albums and questions begin among them
_LONG = 5
_PICTURES_EVERY = 10
_REQUESTS = (*REQUESTS, *REVERSED_REQUESTS[:1])
DOCUMENT = "document"  # the category of prompts about one
REAL_COUNT = 8  # prompts of every kind, written by hand and in none of the training sets
_REAL_FILE = Path(__file__).with_name("real_prompts.json")


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


def scene_prompts(count: int, seed: int, *, with_documents: bool) -> list[EvaluationPrompt]:
    """The prompts of a sweep: scenes of five objects and more, which no training saw, that a model is to describe.

    with_documents: every other one is to transcribe a document.
    """
    pages = held_out_documents(count, seed) if with_documents else []
    found = []
    for i, scene in enumerate(long_scenes(count, seed)):
        if pages and i % 2:
            name, shown, seed_ = f"{DOCUMENT}-{pages[i].seed}", (partial(page, pages[i]),), pages[i].seed
            found.append(EvaluationPrompt(name, TRANSCRIBE[:1], pictures=shown, category=DOCUMENT, world=seed_))
        else:
            asked, shown = (REQUESTS[i % len(REQUESTS)],), (partial(render, scene),)
            found.append(EvaluationPrompt(f"scene-{scene.seed}", asked, pictures=shown, world=scene.seed))
    return found


def demo_scenes(count: int = 3) -> list[Scene]:
    """The held-out scenes of the demo."""
    scenes = _long_scenes(_FIRST - 100_000)
    return [next(scenes) for _ in range(count)]


@cache
def prompts_by_kind() -> dict[InstructionKind, tuple[VlmPrompt, ...]]:
    """All real prompts, by kind."""
    records = read_json(_REAL_FILE)
    return {
        kind: tuple(VlmPrompt(one["text"], history=tuple(map(tuple, one.get("history", ())))) for one in records[kind])
        for kind in INSTRUCTION_KINDS
    }


def real_prompts(count: int, seed: int = 0, *, kind: InstructionKind) -> Sequence[VlmPrompt]:
    """The first prompts of a kind.

    Args:
        count: How many.
        seed: Ignored, since the prompts are fixed: it decides the draws of sampled rows alone.
        kind: The kind of request.

    Returns:
        `count` prompts.

    Raises:
        ValueError: for more prompts than there are.
    """
    known = prompts_by_kind()[kind]
    if not 1 <= count <= len(known):
        raise ValueError(f"--prompts: expected 1 to {len(known)} of a kind, got {count}, change it")
    return known[:count]


def evaluation_prompts(count: int, seed: int = 0) -> list[EvaluationPrompt]:
    """The prompts of a sweep, in turns over the kinds, so that the first few show many kinds.

    The answers to earlier turns are the model's own in sweeps, so that only the user's turns are kept.

    Args:
        count: How many; there are no more than all.
        seed: Where to begin.

    Returns:
        The prompts, whose category is their kind.
    """
    by_kind = prompts_by_kind()
    mixed = [(kind, number, by_kind[kind][number]) for number in range(REAL_COUNT) for kind in INSTRUCTION_KINDS]
    first = seed * count % len(mixed)
    found = []
    for kind, number, prompt in (mixed[first:] + mixed[:first])[:count]:
        turns = (*(text for role, text in prompt.history if role == "user"), prompt.text)
        found.append(EvaluationPrompt(f"{kind}-{number}", turns, category=kind))
    return found


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
REAL_TASKS = tuple(
    VlmTask(kind, partial(real_prompts, kind=kind), 128, pictures=0, most=REAL_COUNT) for kind in INSTRUCTION_KINDS
)
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
