"""The quality of a zoo VLM on held-out scenes, and scorers of single texts about the zoo's world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.vlm.requests import DOCUMENT
from mmspec.run.placement import inputs_on
from mmspec.vlm.hf_model import class_generate
from mmspec.vlm.training.examples import Example, encode
from mmspec.zoo.world.captions import REQUESTS, Claim, parse_caption, truth
from mmspec.zoo.world.documents import REQUESTS as TRANSCRIBE
from mmspec.zoo.world.documents import page, sample_document, words_right
from mmspec.zoo.world.questions import question
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_START, Scene, sample_scene

LIMIT = 220  # new tokens; captions of the world end before 160


@dataclass(frozen=True, slots=True)
class VlmQuality:
    """Shares over held-out scenes; `top1` is the mean largest probability over tokens sampled at T = 1."""

    scenes: int
    objects_right: float  # objects named at their place with the right color and kind
    shapes_right: float  # the same over shapes alone
    digits_right: float  # digits read right at their place
    claims_right: float  # claims of the captions that are true
    answers_right: float  # answers that contain the fact that was asked for
    top1: float
    caption_tokens: float
    finished: float  # captions that end by themselves
    swap_changed: float  # captions that change with the picture
    swap_kept: float  # claims that are still true of the picture that was replaced

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


@torch.no_grad()
def generate_texts(
    model,
    processor,
    subjects: Sequence,
    prompts: list[str],
    batch: int = 50,
    sample: bool = False,
    show: Callable[[Any], Image] = render,
) -> tuple[list[str], Tensor]:
    """Generate texts (greedy, or T = 1 with `sample`) about subjects, scenes or any objects that `show` can draw.
    Return them with the top-1 probability of each sampled token, float32 [T], empty unless sampled."""
    texts, certain = [], []
    for first in range(0, len(subjects), batch):
        part = slice(first, first + batch)
        pairs = zip(prompts[part], map(show, subjects[part]), strict=True)
        inputs = encode(processor, [Example(text, text, (picture,)) for text, picture in pairs])
        inputs = inputs_on(inputs, model)
        law = {"do_sample": sample, "temperature": 1.0 if sample else None, "top_k": 0 if sample else None}
        how = {"max_new_tokens": LIMIT, "output_logits": sample, "return_dict_in_generate": True}
        out = class_generate(model)(**inputs, **law, **how)
        new = out.sequences[:, inputs["input_ids"].shape[1] :]
        texts += [text.strip() for text in processor.batch_decode(new, skip_special_tokens=True)]
        if sample:
            top = torch.stack([step.float().softmax(-1).amax(-1) for step in out.logits], dim=1)
            certain.append(top[new != processor.tokenizer.pad_token_id])
    return texts, torch.cat(certain) if certain else torch.empty(0)


def evaluate_vlm(model, processor, count: int = 500, seed: int = 0, batch: int = 50) -> VlmQuality:
    """Evaluate greedy captions, greedy answers and T = 1 samples of `count` held-out scenes with unseen handwriting."""
    scenes = [sample_scene(EVAL_START + index) for index in range(count)]
    request = [REQUESTS[0]] * count
    captions, _ = generate_texts(model, processor, scenes, request, batch)
    claims = [parse_caption(text) for text in captions]
    torch.manual_seed(seed)
    some = max(1, count // 5)
    _, certain = generate_texts(model, processor, scenes[:some], request[:some], batch, sample=True)
    question_list = [question(scene, seed) for scene in scenes]
    answers, _ = generate_texts(model, processor, scenes, [query.prompt for query in question_list], batch)
    # after an exchange of pictures, the same request yields the next scene's caption
    others = claims[1:] + claims[:1]
    lengths = [len(processor.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in captions]
    return VlmQuality(
        scenes=count,
        objects_right=_recall(scenes, claims),
        shapes_right=_recall(scenes, claims, "shape"),
        digits_right=_recall(scenes, claims, "digit"),
        claims_right=_share(claim in truth(s) for s, stated in zip(scenes, claims, strict=True) for claim in stated),
        answers_right=_share(
            query.fact.lower() in text.lower() for query, text in zip(question_list, answers, strict=True)
        ),
        top1=float(certain.mean()),
        caption_tokens=sum(lengths) / count,
        finished=_share(length < LIMIT - 1 for length in lengths),
        swap_changed=_share(a != b for a, b in zip(captions, captions[1:] + captions[:1], strict=True)),
        swap_kept=_recall(scenes, others),
    )


def evaluate_hybrid(model, processor, count: int = 300, documents: int = 100) -> dict[str, float]:
    """Evaluate as `evaluate_vlm`, and add the share of words right and of faultless pages over held-out documents."""
    figures = evaluate_vlm(model, processor, count).as_dict()
    pages = [sample_document(EVAL_START + index) for index in range(documents)]
    texts, _ = generate_texts(model, processor, pages, [TRANSCRIBE[0]] * documents, show=page)
    right = [words_right(text, document) for text, document in zip(texts, pages, strict=True)]
    return {
        **figures,
        "documents": documents,
        "words_right": round(sum(right) / documents, 4),
        "pages_right": round(_share(share == 1 for share in right), 4),
    }


def _recall(scenes: list[Scene], claims: list[list[Claim]], part: str | None = None) -> float:
    wanted = [
        Claim(thing.cell, thing.color, thing.kind) in stated
        for scene, stated in zip(scenes, claims, strict=True)
        for thing in scene.things
        if part is None or thing.is_digit == (part == "digit")
    ]
    return _share(wanted)


def _share(hits) -> float:
    hits = list(hits)
    return sum(hits) / max(1, len(hits))


class ObjectsRight:
    """The share of a zoo scene's objects that a caption names at their place with colour and kind."""

    name, hash = "objects_right", "world-1"
    about = "share of a scene's objects that the caption names, with place and colour"

    def __call__(self, outputs: Sequence[str], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        worlds = [None if prompt.category == DOCUMENT else prompt.world for prompt in prompts]
        return np.array([self._share(text, world) for text, world in zip(outputs, worlds, strict=True)])

    def _share(self, text: str, world: int | None) -> float:
        if world is None:
            return float("nan")
        stated = parse_caption(text)
        return float(np.mean([claim in stated for claim in truth(sample_scene(world))]))


class WordsRight:
    """The share of the words of a zoo document that a text has in order."""

    name, hash, about = "words_right", "documents-1", "share of a document's words that the text has in their order"

    def __call__(self, outputs: Sequence[str], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        return np.array(
            [
                words_right(text, sample_document(prompt.world)) if prompt.category == DOCUMENT else float("nan")
                for text, prompt in zip(outputs, prompts, strict=True)
            ]
        )


class AnswerRight:
    name, hash, about = "answer_right", "answers-1", "share of texts that contain an answer the prompt names"

    def __call__(self, outputs: Sequence[str], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        return np.array(
            [
                float(any(answer.lower() in text.lower() for answer in prompt.answers))
                if prompt.answers
                else float("nan")
                for text, prompt in zip(outputs, prompts, strict=True)
            ]
        )
