"""Build the drafters of the zoo's VLMs on answers of the VLM itself, and the SpecDec++ head of its EAGLE drafter."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from mmspec.io.files import locked
from mmspec.training.schedule import Schedule
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.training.acceptance_head import train_acceptance
from mmspec.vlm.training.answers import AnswerSettings, generate_target_answers
from mmspec.vlm.training.data import Batches, ConcatenatedExamples, ExampleSubset
from mmspec.vlm.training.own_prompts import write_own_prompts
from mmspec.vlm.training.recipes import equal_recipe
from mmspec.vlm.training.teacher import Teacher
from mmspec.vlm.training.teacher_store import TeacherStore, batches_of_steps
from mmspec.vlm.training.trainer import TrainSettings, train_drafter
from mmspec.zoo.training.loop import note_of, progress_bars, rounded, write_card
from mmspec.zoo.training.vlm.drafter_recipes import ANSWER_SOURCE, RECIPES, TARGETS, DrafterData, DrafterRecipe


def training_answers(
    model: Any, processor: Any, data: DrafterData, work: Path, progress: Progress
) -> dict[str, list[int]]:
    """Return the target's token ids to every request by name, greedy and sampled in turn, cached in `work`."""
    bar = progress.add_task("answers", total=data.count, note="")
    folder, how = work / data.answers, AnswerSettings(batch=48, new_tokens=data.new_tokens)

    def on_batch(done: int) -> None:
        progress.update(bar, advance=done)

    with locked(folder):
        pictures = generate_target_answers(
            model, processor, data.requests(data.pictures), folder / "pictures.jsonl", how, on_batch
        )
        texts = generate_target_answers(
            model, processor, data.text_requests(data.texts), folder / "texts.jsonl", how, on_batch
        )
    progress.update(bar, completed=data.count)
    return pictures | texts


def with_own_prompts(
    data: DrafterData, model: Any, processor: Any, work: Path, batch: int, progress: Progress
) -> DrafterData:
    """Return the data with prompts that the target writes, cached in `work`, among the requests without pictures. The
    requests form batches of a single kind, in a fixed random order."""
    if not data.own_prompts:
        return data
    folder = work / data.answers
    bar = progress.add_task("prompts", total=data.own_prompts, note="")
    with locked(folder):
        own = write_own_prompts(
            model,
            processor,
            data.own_prompts,
            folder / "prompts.jsonl",
            on_batch=lambda done: progress.update(bar, completed=done),
        )
    progress.update(bar, completed=data.own_prompts)
    own = ExampleSubset(own, tuple(range(data.own_prompts)))

    def requests(count: int) -> ExampleSubset:
        both = ConcatenatedExamples(data.text_requests(data.texts), own)
        blocks = [range(i, min(i + batch, count)) for i in range(0, count, batch)]
        random.Random(0).shuffle(blocks)
        return ExampleSubset(both, tuple(place for block in blocks for place in block))

    return replace(data, texts=data.texts + data.own_prompts, text_requests=requests, own_prompts=0)


def build(
    out: Path,
    work: Path,
    target: tuple[Any, Any],
    name: str,
    recipe: DrafterRecipe | None = None,
    *,
    resume: bool = True,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train a drafter on the target's own answers, and write its weights with a card."""
    recipe = RECIPES[name] if recipe is None else recipe
    data = TARGETS[recipe.target]
    target[0].to(device)
    drafter, figures = train_on_answers(name, recipe, target, data, work, resume)
    drafter.save_for(target[0], out, recipe.weights)
    requests = {"pictures": data.pictures, "texts": data.texts}
    if data.own_prompts:
        requests["own_prompts"] = data.own_prompts
    facts = {
        "target": recipe.target,
        "muon": recipe.muon,
        "requests": requests,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "weights": str(recipe.weights).removeprefix("torch."),
        "training": {key: value for key, value in figures.items() if key != "step"},
    }
    return write_card(out, name, drafter, data.source, **facts)


def train_on_answers(
    name: str, recipe: DrafterRecipe, target: tuple[Any, Any], data: DrafterData, work: Path, resume: bool = True
) -> tuple[ShapedDrafter, dict[str, float]]:
    """Train a drafter on the target's own answers, on the device of the target, which is frozen."""
    model, processor = target
    model.eval().requires_grad_(False)
    with progress_bars() as progress:
        data = with_own_prompts(data, model, processor, work, recipe.batch, progress)
        answers = training_answers(model, processor, data, work, progress)
        torch.manual_seed(0)
        drafter = new_drafter(recipe.kind, model, **recipe.sizes)
        if hasattr(drafter, "with_answers"):
            drafter = drafter.with_answers(answers.values())
        return drafter, _train(name, recipe, drafter, target, data, answers, work, resume, progress)


def _train(
    name: str,
    recipe: DrafterRecipe,
    drafter: ShapedDrafter,
    target: tuple[Any, Any],
    data: DrafterData,
    answers: Mapping[str, list[int]],
    work: Path,
    resume: bool,
    progress: Progress,
) -> dict[str, float]:
    (model, processor), how = target, equal_recipe(drafter)
    texts = () if how.curriculum is None else data.text_requests(data.texts)
    batches = Batches(data.main, recipe.batch, recipe.steps, texts, how.curriculum)
    precision = data.precision(model.device)
    teacher = Teacher(
        model, processor, answers, levels=drafter.teacher_levels, precision=precision, shift=drafter.most_shift
    )
    schedule = replace(how, muon=recipe.muon).schedule(recipe.steps)
    settings = TrainSettings(schedule, recipe.objective or how.objective, precision, eval_every=recipe.eval_every)
    bar = progress.add_task(name, total=recipe.steps, note="")

    def on_step(step: int, notes: dict[str, float]) -> None:
        progress.update(bar, completed=step, note=note_of(notes))

    folder = work / name.replace("/", "_")
    with locked(folder):
        store = TeacherStore(folder / "states", teacher.parts.embed) if data.stored else None
        stored = progress.add_task("states", total=len(batches.needed), visible=data.stored, note="")
        teacher_batches = batches_of_steps(
            teacher, batches, store, lambda done, total: progress.update(stored, completed=done)
        )
        return train_drafter(
            drafter,
            model,
            processor,
            teacher_batches,
            folder,
            settings,
            held_out=data.held_out,
            resume=resume,
            on_step=on_step,
        )


ACCEPTANCE_STEPS, ACCEPTANCE_BATCH = 150, 12
AVERAGED_STEPS = 20  # the figures of the card are means over these last steps


def build_acceptance_head(
    out: Path,
    work: Path,
    target: tuple[Any, Any],
    drafter: ShapedDrafter,
    *,
    device: str = "cpu",
    steps: int = ACCEPTANCE_STEPS,
    batch: int = ACCEPTANCE_BATCH,
) -> dict[str, Any]:
    """Train a SpecDec++ head on draft tokens of a frozen drafter, and write fp16 weights with a card. Cached answers in
    `work` are reused. The training takes minutes and cannot be resumed."""
    (model, processor), data = target, TARGETS["vlm"]
    model.to(device).eval().requires_grad_(False)
    drafter.to(device)
    with progress_bars() as progress:
        answers = training_answers(model, processor, data, work, progress)
        teacher = Teacher(model, processor, answers)
        batches = Batches(data.requests(data.pictures), batch, steps)
        bar, figures, began = progress.add_task("vlm/specdecpp", total=steps, note=""), [], time.monotonic()

        def on_step(step: int, notes: dict[str, float]) -> None:
            figures.append(notes)
            progress.update(bar, completed=step, note=note_of(notes))

        schedule = Schedule(steps, 1e-3, warmup=10)
        torch.manual_seed(0)
        head = train_acceptance(
            drafter, model, lambda step: teacher(batches[batches.number(step)]), schedule, on_step=on_step
        )
    seconds = round(time.monotonic() - began, 1)
    head.save_pretrained(out, dtype=torch.float16)
    last = figures[-AVERAGED_STEPS:]
    means = {name: sum(step_figures[name] for step_figures in last) / len(last) for name in last[0]}
    facts = {"target": "vlm", "drafter": "vlm/eagle", "steps": steps, "batch": batch,
             "training": {"seconds": seconds, **rounded(means)}}  # fmt: skip
    return write_card(out, "vlm/specdecpp", head, ANSWER_SOURCE, **facts)
