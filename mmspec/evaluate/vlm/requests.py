"""Requests for text: scenes and documents of the zoo's world, real prompts, and their model inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.io.readers import read_json
from mmspec.run.scenes import FIRST_SCENE, SCENES_A_SEED, check_scenes, long_scenes, scenes_of_many_objects
from mmspec.run.vlm_requests import VlmPrompt
from mmspec.zoo.world.captions import REQUESTS, REVERSED_REQUESTS
from mmspec.zoo.world.documents import REQUESTS as TRANSCRIBE
from mmspec.zoo.world.documents import Document, page, sample_document
from mmspec.zoo.world.instructions import INSTRUCTION_KINDS, InstructionKind
from mmspec.zoo.world.questions import ORDINALS, QUESTION_KINDS, question
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import Scene, sample_scene

_ALBUMS, _ASKED = 40_000, 80_000  # of the scenes of a seed, the first of albums and of questions
_PICTURES_EVERY = 10
_REQUESTS = (*REQUESTS, *REVERSED_REQUESTS[:1])
DOCUMENT = "document"  # the category of prompts about a document
REAL_COUNT = 8  # prompts of every kind, written by hand and absent from all training sets
_REAL_FILE = Path(__file__).with_name("real_prompts.json")


def held_out(count: int, seed: int = 0) -> list[VlmPrompt]:
    """Return `count` requests with long answers about held-out scenes; a pure function of its arguments. Scenes hold at
    least five objects, so that the answer is long. Every tenth request shows three pictures and asks about a single
    picture of them."""
    check_scenes(count, seed)
    scenes = scenes_of_many_objects(FIRST_SCENE + seed * SCENES_A_SEED)
    return [_prompt(index, scenes) for index in range(count)]


def questions(count: int, seed: int = 0) -> list[VlmPrompt]:
    """Return `count` questions about a single fact of a held-out scene, all kinds in turn. The fact is a word or two,
    and the answer a short sentence."""
    check_scenes(count, seed)
    scenes = [sample_scene(FIRST_SCENE + seed * SCENES_A_SEED + _ASKED + index) for index in range(count)]
    kinds = [QUESTION_KINDS[index % len(QUESTION_KINDS)] for index in range(count)]
    question_list = [question(scene, seed, kind) for scene, kind in zip(scenes, kinds, strict=True)]
    return [VlmPrompt(query.prompt, (render(scene),)) for query, scene in zip(question_list, scenes, strict=True)]


def documents(count: int, seed: int = 0) -> list[VlmPrompt]:
    """Return `count` requests to transcribe a held-out document, whose text is known."""
    shown = held_out_documents(count, seed)
    return [
        VlmPrompt(TRANSCRIBE[index % len(TRANSCRIBE)], (page(page_index),)) for index, page_index in enumerate(shown)
    ]


def held_out_documents(count: int, seed: int = 0) -> list[Document]:
    """Return the documents of `documents`."""
    check_scenes(count, seed)
    return [sample_document(FIRST_SCENE + seed * SCENES_A_SEED + index) for index in range(count)]


def albums(count: int, seed: int = 0, pictures: int = 16) -> list[VlmPrompt]:
    """Return `count` requests that show `pictures` scenes and ask for the caption of one of the first three."""
    check_scenes(count, seed)
    scenes = scenes_of_many_objects(FIRST_SCENE + seed * SCENES_A_SEED + _ALBUMS)
    wanted = [f"Describe the {name} picture." for name in ORDINALS[:pictures]] if pictures > 1 else REQUESTS
    return [
        VlmPrompt(wanted[index % len(wanted)], tuple(render(next(scenes)) for _ in range(pictures)))
        for index in range(count)
    ]


def _prompt(index: int, scenes: Iterator[Scene]) -> VlmPrompt:
    if index % _PICTURES_EVERY == _PICTURES_EVERY - 1:
        which = ORDINALS[index // _PICTURES_EVERY % 3]
        return VlmPrompt(f"Describe the {which} picture.", tuple(render(next(scenes)) for _ in range(3)))
    return VlmPrompt(_REQUESTS[index % len(_REQUESTS)], (render(next(scenes)),))


def scene_prompts(count: int, seed: int, *, with_documents: bool) -> list[EvaluationPrompt]:
    """Return the prompts of a sweep: descriptions of held-out scenes of at least five objects. `with_documents`
    replaces every second prompt by the transcription of a document."""
    pages = held_out_documents(count, seed) if with_documents else []
    prompts = []
    for i, scene in enumerate(long_scenes(count, seed)):
        if pages and i % 2:
            name, shown, seed_ = f"{DOCUMENT}-{pages[i].seed}", (partial(page, pages[i]),), pages[i].seed
            prompts.append(EvaluationPrompt(name, TRANSCRIBE[:1], pictures=shown, category=DOCUMENT, world=seed_))
        else:
            texts, shown = (REQUESTS[i % len(REQUESTS)],), (partial(render, scene),)
            prompts.append(EvaluationPrompt(f"scene-{scene.seed}", texts, pictures=shown, world=scene.seed))
    return prompts


@cache
def prompts_by_kind() -> dict[InstructionKind, tuple[VlmPrompt, ...]]:
    records = read_json(_REAL_FILE)
    return {
        kind: tuple(
            VlmPrompt(record["text"], history=tuple(map(tuple, record.get("history", ())))) for record in records[kind]
        )
        for kind in INSTRUCTION_KINDS
    }


def real_prompts(count: int, seed: int = 0, *, kind: InstructionKind) -> Sequence[VlmPrompt]:
    """Return the first prompts of a kind. The seed affects the random numbers of sampled rows only, since the prompts
    are fixed."""
    known = prompts_by_kind()[kind]
    if not 1 <= count <= len(known):
        raise ValueError(f"--prompts: expected 1 to {len(known)} of a kind, got {count}, change it")
    return known[:count]


def evaluation_prompts(count: int, seed: int = 0) -> list[EvaluationPrompt]:
    """Return the prompts of a sweep, at most `count`, alternating over the kinds, their category, so that the first few
    show many kinds. The seed chooses the first. Only the user's turns are used, since a sweep generates the answers to
    earlier turns itself."""
    by_kind = prompts_by_kind()
    mixed = [(kind, number, by_kind[kind][number]) for number in range(REAL_COUNT) for kind in INSTRUCTION_KINDS]
    first = seed * count % len(mixed)
    prompts = []
    for kind, number, prompt in (mixed[first:] + mixed[:first])[:count]:
        turns = (*(text for role, text in prompt.history if role == "user"), prompt.text)
        prompts.append(EvaluationPrompt(f"{kind}-{number}", turns, category=kind))
    return prompts


@dataclass(frozen=True, slots=True)
class VlmTask:
    """A kind of request in a bench."""

    name: str
    make: Callable[[int, int], Sequence[VlmPrompt]]  # a function of (count, seed)
    new_tokens: int  # the longest answer
    natural: bool = True  # answers end where the model ends them; otherwise the end-of-text token is suppressed
    pictures: int = 1  # per request
    times: int = 1  # a multiple of the bench's number of prompts; short answers need more prompts for a steady median
    most: int | None = None  # the number of requests that exist; None for any number
    only: str = ""  # the only model of the zoo that was trained for it, "" for any model


CAPTIONS = VlmTask("captions", held_out, 128)
QUESTIONS = VlmTask("questions", questions, 48, times=3)
ONE_WORD = VlmTask("one word", questions, 3, times=3)  # "It is red": too short for most drafts
DOCUMENTS = VlmTask("documents", documents, 144)
REAL_TASKS = tuple(
    VlmTask(kind, partial(real_prompts, kind=kind), 128, pictures=0, most=REAL_COUNT) for kind in INSTRUCTION_KINDS
)
ENDLESS = VlmTask("endless captions", held_out, 128, natural=False)
ALBUMS = tuple(
    VlmTask(f"{count} picture{'s' * (count > 1)}", partial(albums, pictures=count), 128, pictures=count)
    for count in (1, 4, 8, 16)
)
