"""Build the zoo's SpecDec++ head over its EAGLE drafter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from mmspec.vlm.drafters.shaped import ShapedDrafter
from mmspec.vlm.training.acceptance import train_acceptance
from mmspec.vlm.training.batches import Batches
from mmspec.vlm.training.schedule import Schedule
from mmspec.vlm.training.teacher import Teacher

from ..files.cards import write_card
from .build_drafter import PICTURES, TEXTS, own_answers
from .drafter_requests import Pictures

STEPS, BATCH = 150, 12
NOTED = 20  # steps the card's figures are means of


def build(target: tuple[Any, Any], drafter: ShapedDrafter, out: Path, work: Path, device: str = "cpu") -> dict:
    """Train the head on the frozen drafter's own draws; write fp16 weights and the card to `out`.

    Answers in `work` are taken up; the training itself takes minutes and is not interrupted.
    """
    model, processor = target
    model.to(device).eval().requires_grad_(False)
    drafter.to(device)
    with Progress() as progress:
        bar = progress.add_task("answers", total=PICTURES + TEXTS)
        answers = own_answers(model, processor, work, lambda done: progress.update(bar, advance=done))
        teacher = Teacher(model, processor, answers)
        batches = Batches(Pictures(PICTURES), BATCH, STEPS)
        bar, figures, began = progress.add_task("vlm/specdecpp", total=STEPS), [], time.monotonic()

        def on_step(step: int, notes: dict[str, float]) -> None:
            figures.append(notes)
            progress.update(bar, completed=step)

        schedule = Schedule(STEPS, 1e-3, warmup=10)
        torch.manual_seed(0)
        head = train_acceptance(
            drafter, model, lambda step: teacher(batches[batches.number(step)]), schedule, on_step=on_step
        )
    head.save_pretrained(out, dtype=torch.float16)
    last = figures[-NOTED:]
    means = {name: round(sum(one[name] for one in last) / len(last), 4) for name in last[0]}
    card = {
        "name": "vlm/specdecpp",
        "class": f"{type(head).__module__}.{type(head).__qualname__}",
        "target": "vlm",
        "drafter": "vlm/eagle",
        "licence": "Apache-2.0",
        "parameters": sum(p.numel() for p in head.parameters()),
        "data": "procedural world of mmspec.zoo.world, answered by the zoo VLM itself at temperatures 0 and 1",
        "steps": STEPS,
        "batch": BATCH,
        "training": {"seconds": round(time.monotonic() - began, 1), **means},
        "command": "mmspec zoo build vlm/specdecpp",
    }
    write_card(out, card)
    return card
