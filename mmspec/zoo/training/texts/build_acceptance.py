"""Build the zoo's SpecDec++ head over its EAGLE drafter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from mmspec.vlm.drafters.shaped import ShapedDrafter
from mmspec.vlm.training.acceptance import train_acceptance
from mmspec.vlm.training.batches import Batches
from mmspec.vlm.training.schedule import Schedule
from mmspec.vlm.training.teacher import Teacher

from ...files.cards import rounded, write_card
from ..bars import bars, note_of
from .build_drafter import ANSWERED, TARGETS, own_answers

STEPS, BATCH = 150, 12
AVERAGED = 20  # steps the card's figures are means of


def build(
    out: Path,
    work: Path,
    target: tuple[Any, Any],
    drafter: ShapedDrafter,
    *,
    device: str = "cpu",
    steps: int = STEPS,
    batch: int = BATCH,
) -> dict[str, Any]:
    """Train the head on the frozen drafter's own draws; write fp16 weights and the card to `out`; returns the card.

    Answers in `work` are taken up; the training itself takes minutes and is not interrupted.
    """
    (model, processor), asked = target, TARGETS["vlm"]
    model.to(device).eval().requires_grad_(False)
    drafter.to(device)
    with bars() as progress:
        answers = own_answers(model, processor, asked, work, progress)
        teacher = Teacher(model, processor, answers)
        batches = Batches(asked.requests(asked.pictures), batch, steps)
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
    last = figures[-AVERAGED:]
    means = {name: sum(one[name] for one in last) / len(last) for name in last[0]}
    facts = {"target": "vlm", "drafter": "vlm/eagle", "steps": steps, "batch": batch,
             "training": {"seconds": seconds, **rounded(means)}}  # fmt: skip
    return write_card(out, "vlm/specdecpp", head, ANSWERED, **facts)
