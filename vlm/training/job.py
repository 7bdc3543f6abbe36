"""A whole training run: answers, states, training, and a folder with the drafter and its card."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmspec.io.files import locked, write_json_atomic
from mmspec.io.readers import read_json_lines
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.drafter_names import SMALL
from mmspec.vlm.training.data import Batches, TrainingData
from mmspec.vlm.training.job_settings import Job
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.objective_wrappers import SelectTokens
from mmspec.vlm.training.on_policy import OnPolicyTeacher
from mmspec.vlm.training.recipes import (
    Recipe,
)
from mmspec.vlm.training.run_setup import (
    OnProgress,
    drafter_card,
    fit_vocabulary,
    initial_drafter,
    phase_of,
    process_state,
    run_answers,
)
from mmspec.vlm.training.small_model import run_small_job
from mmspec.vlm.training.teacher import Teacher
from mmspec.vlm.training.teacher_store import TeacherStore, batches_of_steps, check_image_dependence
from mmspec.vlm.training.trainer import TrainSettings, train_drafter


def run_job(
    job: Job,
    model: nn.Module,
    processor: Any,
    data: TrainingData,
    out: Path,
    *,
    target: str,
    licence: str | None = None,
    resume: bool = True,
    on_progress: OnProgress = lambda phase, done, total, notes: None,
) -> dict[str, Any]:
    """Train a drafter for `model`, save it with its card in `out`, and return the card.

    Answers, stored states, the training state and its log are written to `out/work`, from which `resume` continues.
    Under `accelerate launch`, the main process generates answers and states, and all processes train. SIGINT or SIGTERM
    stops after the running step, which is saved. `on_progress` gets the phase ("answers", "states", "training"), its
    completed count, its total and the figures of a training step. An extra first phase reports that `equal_recipe` has
    no curriculum because texts or pictures are missing."""
    if job.precision == "no" and model.dtype != torch.float32:
        raise ValueError(
            f"precision: expected bf16 for a target in {model.dtype}, got no; use bf16 or load it in float32"
        )
    parallel = process_state(cpu=model.device.type == "cpu")
    with locked(out / "work") if parallel.is_main_process else nullcontext():
        if job.kind == SMALL:
            return run_small_job(job, model, processor, data, out, parallel, target, licence, resume, on_progress)
        return _run(job, model, processor, data, out, parallel, target, licence, resume, on_progress)


def _run(
    job: Job,
    model: nn.Module,
    processor: Any,
    data: TrainingData,
    out: Path,
    parallel: Any,
    target: str,
    licence: str | None,
    resume: bool,
    on_progress: OnProgress,
) -> dict[str, Any]:
    work = out / "work"
    drafter = initial_drafter(job.kind, model, job.built, job.start, job.seed)
    recipe = job.recipe_for(drafter)
    batches = _batches(job, recipe, data, parallel.num_processes)
    if recipe.curriculum is not None and batches.curriculum is None:
        on_progress(f"without its curriculum: {len(data.texts)} texts, {len(data.pictures)} pictures", 1, 1, {})
    with parallel.main_process_first():
        restart = not resume and parallel.is_main_process
        answers = run_answers(job, recipe, model, processor, data, batches, work, target, not restart, on_progress)
    drafter, share = fit_vocabulary(drafter, answers.values(), fresh=job.start is None)
    teacher = Teacher(
        model,
        processor,
        answers,
        levels=drafter.teacher_levels,
        longest=job.longest,
        precision=job.precision,
        shift=drafter.most_shift,
    )
    shown = (batch for batch in map(batches.__getitem__, batches.needed) if any(example.images for example in batch))
    check_image_dependence(teacher, next(shown, ()))
    is_online = recipe.teacher == "online" or job.teaching.share
    store = None if is_online else TeacherStore(work / "states", teacher.parts.embed)
    with parallel.main_process_first():
        teacher_batches = batches_of_steps(teacher, batches, store, phase_of(on_progress, "states"))
    if job.teaching.share:
        judge = OnPolicyTeacher(teacher, drafter, job.teaching, job.seed)
        teacher_batches = lambda step: judge(batches[batches.number(step)], step)  # noqa: E731
    settings = TrainSettings(
        recipe.schedule(job.steps),
        _objective(job, recipe, drafter, model),
        precision=job.precision,
        noise=recipe.noise,
        eval_every=job.eval_every,
        eval_tokens=job.eval_tokens,
        seed=job.seed,
    )
    figures = train_drafter(
        drafter,
        model,
        processor,
        teacher_batches,
        work,
        settings,
        held_out=data.held_out,
        resume=resume,
        on_step=lambda step, notes: on_progress("training", step, job.steps, notes),
    )
    card = drafter_card(
        job, recipe, drafter, batches, figures, target=target, licence=licence, data_licence=data.licence
    )
    megabytes = None if store is None else round(store.megabytes, 3)
    card |= {"states_megabytes": megabytes, "vocabulary_share": round(share, 4)}
    if parallel.is_main_process:
        drafter.save_pretrained(out, dtype=model.dtype)
        write_json_atomic(out / "card.json", card)
    parallel.wait_for_everyone()
    return card


def _batches(job: Job, recipe: Recipe, data: TrainingData, processes: int) -> Batches:
    steps = job.steps * processes
    if recipe.curriculum is None:
        return Batches(data.mixed, job.batch, steps)
    if not len(data.texts) or not len(data.pictures):
        if job.recipe != "equal":
            raise ValueError(
                f"recipe: expected texts and pictures for the curriculum of {job.recipe}, got {len(data.texts)} "
                f"texts and {len(data.pictures)} examples with pictures; add some, or use equal"
            )
        return Batches(data.mixed, job.batch, steps)
    return Batches(data.pictures, job.batch, steps, data.texts, recipe.curriculum)


def _objective(job: Job, recipe: Recipe, drafter: ShapedDrafter, model: nn.Module) -> object:
    if job.reference is None:
        return recipe.objective
    if not isinstance(recipe.objective, Objective):
        raise ValueError(
            f"reference: expected a recipe with a plain Objective, got that of {job.kind}; leave the reference out"
        )
    from mmspec.vlm.drafters.checkpoints import load_drafter

    reference = load_drafter(job.reference, target=model).float()
    return SelectTokens(recipe.objective, reference, job.share)


def read_training_log(out: Path) -> list[dict[str, Any]]:
    """Return the log lines of a run in `out`, see `TrainingLog`."""
    return read_json_lines(out / "work" / "log.jsonl")
