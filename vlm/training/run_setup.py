"""The setup of a training run: its processes, its drafter (new, or warm-started from a saved one) and its folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmspec.io.files import write_json_atomic
from mmspec.io.readers import read_json
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.kinds import new_drafter
from mmspec.vlm.drafters.reduced_vocabulary import vocabulary_share


def initial_drafter(
    kind: str, model: nn.Module, sizes: dict[str, Any], start: Path | None = None, seed: int = 0
) -> ShapedDrafter:
    """A new drafter of `kind` with weights from `seed`, or the one saved in `start`, float32. sizes: see `new_drafter`.

    Kinds with two stages of training may start from the drafter of the first stage, see `warm_start` of their class. A
    reduced vocabulary stays that of `start`, see `fit_vocabulary`.
    Raises ValueError where `start` holds another kind.
    """
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
    """The drafter that trains on these answers, and the share of their tokens it can draft.

    A fresh drafter of a reduced vocabulary is given the answers' most frequent tokens. One that goes on from a trained one
    keeps its own: its rows are trained, and others would be new.
    Raises ValueError where it can draft none of them.
    """
    if fresh and hasattr(drafter, "with_answers"):
        drafter = drafter.with_answers(answers)
    head = getattr(drafter, "head", None)
    if not getattr(head, "reduced", False):
        return drafter, 1.0
    share = vocabulary_share(head.ids.tolist(), answers)
    if not share:
        raise ValueError("start: expected a drafter that has words of these answers in its reduced vocabulary, got one "
                         "without any; train a new one")  # fmt: skip
    return drafter, share


def check_same_run(file: Path, decides: dict[str, Any]) -> None:
    """Notes in `file` what decides a run, or makes sure that the run noted there is this one.

    Raises ValueError where it is another.
    """
    decides = json.loads(json.dumps(decides, default=str))
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(file, decides)
        return
    known = read_json(file)
    other = sorted(name for name in decides | known if decides.get(name) != known.get(name))
    if other:
        told = ", ".join(f"{name} {known.get(name)!r} instead of {decides.get(name)!r}" for name in other)
        raise ValueError(f"{file.parent}: expected the work of this run, got that of one with {told}; start over or choose "
                         "another folder")  # fmt: skip


def process_state(cpu: bool) -> Any:
    """accelerate's view of the processes that train together.   Raises ValueError where it is not installed."""
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise ValueError('training: expected accelerate, found none; pip install "mmspec[train]"') from error

    # making answers takes the main process longer than backends wait by default
    return PartialState(cpu=cpu, timeout=timedelta(days=7))
