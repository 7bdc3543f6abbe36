"""The setup of a training run: its processes, its new or warm-started drafter, and its folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmspec.io.files import LOCK, write_json_atomic
from mmspec.io.readers import read_json
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.reduced_vocabulary import vocabulary_share
from mmspec.vlm.training.answers import AnswerSettings, answers_to_streams
from mmspec.vlm.training.data import Batches, ExampleSubset, TrainingData, contents_of
from mmspec.vlm.training.job_settings import Job
from mmspec.vlm.training.recipes import Recipe


def initial_drafter(
    kind: str, model: nn.Module, sizes: dict[str, Any], start: Path | None = None, seed: int = 0
) -> ShapedDrafter:
    """Return a new drafter, or the drafter saved in `start`, in float32. Its reduced vocabulary remains, see
    `fit_vocabulary`. Kinds with two training stages may start from the drafter of the first stage, see `warm_start` of
    their class. `sizes` are as in `new_drafter`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        untrained = new_drafter(kind, model, **sizes)
        if start is None:
            return untrained
        drafter = untrained.warm_start(load_drafter(start, target=model).float())
    if drafter.kind != untrained.kind:
        raise ValueError(
            f"start: expected a drafter of kind {untrained.kind}, got {drafter.kind} in {start}; choose another"
        )
    return drafter


def fit_vocabulary(
    drafter: ShapedDrafter, answers: Collection[Sequence[int]], fresh: bool
) -> tuple[ShapedDrafter, float]:
    """Return the drafter with its reduced vocabulary, and the share of the answers' tokens in it. A new drafter gets
    the answers' most frequent tokens. A warm-started drafter keeps its own vocabulary, whose rows are already trained.
    """
    if fresh and hasattr(drafter, "with_answers"):
        drafter = drafter.with_answers(answers)
    head = getattr(drafter, "head", None)
    if not getattr(head, "reduced", False):
        return drafter, 1.0
    share = vocabulary_share(head.ids.tolist(), answers)
    if not share:
        raise ValueError(
            "start: expected a drafter with tokens of these answers in its reduced vocabulary, got a drafter "
            "without any of them; train a new drafter"
        )
    return drafter, share


def check_same_run(file: Path, decides: dict[str, Any]) -> None:
    """Write the settings of a run to `file`, or compare them with those already there."""
    decides = json.loads(json.dumps(decides, default=str))
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(file, decides)
        return
    known = read_json(file)
    other = sorted(name for name in decides | known if decides.get(name) != known.get(name))
    if other:
        changes = ", ".join(f"{name} {known.get(name)!r} instead of {decides.get(name)!r}" for name in other)
        raise ValueError(
            f"{file.parent}: expected the work of this run, got that of a run with {changes}; start over or "
            "choose another folder"
        )


OnProgress = Callable[[str, int, int, dict[str, float]], None]


def phase_of(on_progress: OnProgress, name: str) -> Callable[[int, int], None]:
    """Return a function of a completed count and its total that reports a phase."""
    return lambda done, total: on_progress(name, done, total, {})


def run_answers(
    job: Job,
    recipe: Recipe,
    model: nn.Module,
    processor: Any,
    data: TrainingData,
    batches: Batches,
    work: Path,
    target: str,
    resume: bool,
    on_progress: OnProgress,
) -> dict[str, Sequence[int]]:
    """Return the answers to train on by key, after the check that the folder holds no other run."""
    if not resume:
        _clear_folder(work)
    decides = {k: v for k, v in asdict(job).items() if k not in ("eval_every", "eval_tokens")}
    streams = [ExampleSubset(stream, places) for stream, places in batches.used]
    contents = contents_of([*streams, data.held_out])
    check_same_run(work / "job.json", {**decides, "target": target, "examples": len(data.mixed), "data": contents})
    how = AnswerSettings(job.new_tokens, batch=max(job.batch, 16), seed=job.seed)
    return answers_to_streams(recipe.answers, model, processor, streams, work, how, phase_of(on_progress, "answers"))


def _clear_folder(work: Path) -> None:
    """Remove all files except the lock, which this run holds."""
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def drafter_card(
    job: Job,
    recipe: Recipe,
    drafter: nn.Module,
    batches: Batches,
    figures: dict[str, float],
    *,
    target: str,
    licence: str | None,
    data_licence: str | None,
) -> dict[str, Any]:
    return {
        "class": f"{type(drafter).__module__}.{type(drafter).__qualname__}",
        "kind": job.kind,
        "target": target,
        "target_licence": licence or "not stated",
        "data_licence": data_licence or "not stated",
        "parameters": sum(p.numel() for p in drafter.parameters()),
        "recipe": job.recipe,
        "loss": job.loss,
        "lr": recipe.lr,
        "steps": job.steps,
        "batch": job.batch,
        "examples": sum(len(places) for _, places in batches.used),
        "curriculum": _curriculum_entry(recipe, batches),
        "answers": recipe.answers,
        "teacher": recipe.teacher,
        "source": job.source,
        "seed": job.seed,
        "training": {name: value for name, value in figures.items() if name != "step"},
    }


def _curriculum_entry(recipe: Recipe, batches: Batches) -> dict[str, Any] | str | None:
    if batches.curriculum is not None:
        return asdict(batches.curriculum)
    return None if recipe.curriculum is None else "left out, as the data holds texts alone or pictures alone"


def process_state(cpu: bool) -> Any:
    """Return accelerate's state of the processes that train together."""
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise ValueError('training: expected accelerate, found none; pip install "mmspec[train]"') from error

    # the main process generates answers for longer than the default timeout of backends
    return PartialState(cpu=cpu, timeout=timedelta(days=7))
