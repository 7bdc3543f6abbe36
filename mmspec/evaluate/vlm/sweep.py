"""Vision-language models in sweeps: drafters by name, pictures of the world, conversations of several turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.engine.domain import SamplingOverrides, Sweep
from mmspec.evaluate.engine.prompt import EvaluationPrompt, MethodText
from mmspec.evaluate.engine.runs import Sampler, TimedRun
from mmspec.evaluate.vlm.config import VlmSetting
from mmspec.evaluate.vlm.methods import PEER, VlmMethod
from mmspec.evaluate.vlm.real_suite import evaluation_prompts
from mmspec.evaluate.vlm.requests import CAPTIONS, REQUESTS, TRANSCRIBE, encode_turns, held_out_documents, long_scenes
from mmspec.evaluate.vlm.resources import (
    HYBRID,
    SMOLLM2,
    TARGETS,
    VlmResources,
    drafter_names,
    published_resources,
    short_name,
    title_of,
    zoo_resources,
)
from mmspec.evaluate.vlm.runner import timed_runner
from mmspec.evaluate.vlm.suites import SUITES, SWEPT
from mmspec.evaluate.vlm.variants import chained
from mmspec.methods import parse
from mmspec.zoo.world.captions import parse_caption, truth
from mmspec.zoo.world.documents import Document, page, sample_document, words_right
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import sample_scene

_DOCUMENT = "document"  # the category of prompts about one
MODELS = TARGETS


def defaults(model: str) -> list[tuple[str, str]]:
    """Plain decoding, the drafters there are, and one relaxed rule; drafters without training for a model of a folder."""
    known = drafter_names(model) if model in MODELS else ("lookup", "recycling")
    found = [(name, "") for name in SWEPT if name in known]
    return [("ar", ""), *found, ("recycling", "typical:threshold=0.09,alpha=0.3")]


def method(model: str, decoding: str, rule: str) -> VlmMethod:
    """A drafter by name or folder, with `length` for chains; "ar" is plain decoding, "hf" transformers' own. The keys of the
    benches' rows are taken too."""
    spec = MethodText.read(decoding, "--decoding")
    ours = drafter_names(model) if model in MODELS else drafter_names()
    own = (PEER, "plain", *ours)
    suites = [suite for suite in SUITES.values() if suite.model == (model if model in MODELS else "vlm")]
    rows = (one for suite in suites for one in suite.rows() if one.key == decoding and decoding not in own)
    found = next(rows, None)
    if found is not None:
        parse(rule or found.rule, "vlm", "rule", "--rule")
        return replace(found, rule=rule or found.rule)
    rule = rule or "exact"
    judged = parse(rule, "vlm", "rule", "--rule")
    if spec.name in ("ar", "none", PEER):
        spec.values("--decoding")
        engine, title = ("transformers", "transformers") if spec.name == PEER else ("mmspec", "plain")
        return VlmMethod(decoding, title, rule, engine=engine)
    name = short_name(spec.name)
    if name not in ours:
        check_choice("--decoding", spec.name, ("ar", PEER, *ours), f" for {model}")
    length = spec.values("--decoding", length=int).get("length")
    title = title_of(name) + (f" (chain of {length})" if length else "")
    title += "" if rule == "exact" else f" + {judged.title}"
    return VlmMethod(decoding, title, rule, drafter=name, change=chained(length) if length else None)


def setting(model: str, temperature: float, wishes: SamplingOverrides) -> VlmSetting:
    limit = wishes.given(new_tokens=CAPTIONS.new_tokens)["new_tokens"]
    return VlmSetting(batch=1, temperature=temperature, prompts=1, seed=0, task=CAPTIONS, limit=limit)


def prompts(model: str, count: int, seed: int) -> list[EvaluationPrompt]:
    """Requests to describe scenes of five objects and more, which no training saw; every other one of the hybrid, which was
    taught to, is to transcribe a document. The real prompts of the benches for a model of text alone."""
    if model == SMOLLM2:
        return evaluation_prompts(count, seed)
    pages = held_out_documents(count, seed) if model == HYBRID else []
    found = []
    for i, scene in enumerate(long_scenes(count, seed)):
        if pages and i % 2:
            found.append(_document_prompt(pages[i]))
            continue
        asked, shown = (REQUESTS[i % len(REQUESTS)],), (partial(render, scene),)
        found.append(EvaluationPrompt(f"scene-{scene.seed}", asked, pictures=shown, world=scene.seed))
    return found


def _document_prompt(document: Document) -> EvaluationPrompt:
    shown = (partial(page, document),)
    return EvaluationPrompt(
        f"{_DOCUMENT}-{document.seed}", TRANSCRIBE[:1], pictures=shown, category=_DOCUMENT, world=document.seed
    )


def case(resources: VlmResources, setting: VlmSetting, prompt: EvaluationPrompt) -> EvaluationPrompt:
    return prompt


def sampler(method: VlmMethod, resources: VlmResources, setting: VlmSetting) -> Sampler:
    """A function of (prompt, seed) that answers turn after turn, each from all that was said before; returns what all answers
    cost together, and the answers as one text. Encoding is not timed."""
    decode = timed_runner(method, resources, setting)

    def run(prompt: EvaluationPrompt, seed: int) -> tuple[TimedRun, list[str]]:
        runs: list[TimedRun] = []
        answers: list[str] = []
        pictures = tuple(one() for one in prompt.pictures)
        for turn in range(len(prompt.turns)):
            inputs = encode_turns(resources.processor, prompt.turns[: turn + 1], answers, pictures)
            runs.append(decode(inputs, seed + turn))
            ids = list(runs[-1].output[0])
            answers.append(resources.processor.decode(ids, skip_special_tokens=True).strip())
        return combined_run(runs), ["\n\n".join(answers)]

    return run


def combined_run(runs: Sequence[TimedRun]) -> TimedRun:
    """What requests for one row cost one after another, as one."""
    if len(runs) == 1:
        return runs[0]
    output = tuple(chain.from_iterable(run.output[0] for run in runs))
    passes = sum(run.target_passes for run in runs)
    parts = None
    if all(run.parts is not None for run in runs):
        parts = {name: sum(run.parts[name] for run in runs) for name in runs[0].parts}
    return TimedRun(
        seconds=sum(run.seconds for run in runs),
        output=(output,),
        target_passes=passes,
        accept_length=len(output) / passes,
        parts=parts,
        exact=all(run.exact for run in runs),
        drafter_passes=sum(run.drafter_passes for run in runs),
        rounds=sum(run.decode_rounds for run in runs),
        accepted=tuple(chain.from_iterable(run.accepted for run in runs)),
    )


class ObjectsRight:
    """Of the objects of the zoo's scene that a caption is about, the share it names at their place with colour and kind."""

    name, hash, about = (
        "objects_right",
        "world-1",
        "share of a scene's objects that the caption names, with place and colour",
    )

    def __call__(self, made: Sequence[str], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        worlds = [None if one.category == _DOCUMENT else one.world for one in prompts]
        return np.array([self._share(text, world) for text, world in zip(made, worlds, strict=True)])

    def _share(self, text: str, world: int | None) -> float:
        if world is None:
            return float("nan")
        said = parse_caption(text)
        return float(np.mean([claim in said for claim in truth(sample_scene(world))]))


class WordsRight:
    """Of the words of a document of the zoo's world, the share that a text has, in order."""

    name, hash, about = "words_right", "documents-1", "share of a document's words that the text has in their order"

    def __call__(self, made: Sequence[str], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        return np.array([
            words_right(text, sample_document(one.world)) if one.category == _DOCUMENT else float("nan")
            for text, one in zip(made, prompts, strict=True)
        ])  # fmt: skip


class AnswerRight:
    """Whether one of the answers that a prompt names stands in the text."""

    name, hash, about = "answer_right", "answers-1", "share of texts that contain an answer the prompt names"

    def __call__(self, made: Sequence[str], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        return np.array([
            float(any(answer.lower() in text.lower() for answer in one.answers)) if one.answers else float("nan")
            for text, one in zip(made, prompts, strict=True)
        ])  # fmt: skip


def open_model(model: str) -> VlmResources:
    return zoo_resources(model) if model in MODELS else published_resources(model, local=True)


SWEEP = Sweep(
    models=MODELS,
    shows="text",
    temperatures=(0.0, 1.0),
    defaults=defaults,
    method=method,
    setting=setting,
    open=open_model,
    prompts=prompts,
    case=case,
    sampler=sampler,
    said=lambda setting: {**setting.name(), "limit": setting.limit},
    scorers=lambda model: [
        *([] if model == SMOLLM2 else [ObjectsRight()]),
        AnswerRight(),
        *([WordsRight()] if model == HYBRID else []),
    ],
)
