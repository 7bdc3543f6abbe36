"""Build the head of judge decoding for the zoo's VLM, from captions with errors that the scene graph labels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmspec.vlm.training.answers import AnswerSettings, generate_target_answers
from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.judge import JudgedTokens, judge_figures, judged_tokens, train_judge
from mmspec.vlm.training.teacher import Teacher
from mmspec.zoo.training.loop import note_of, progress_bars, rounded, write_card
from mmspec.zoo.training.vlm.drafter_requests import FIRST_SEED
from mmspec.zoo.world.captions import REQUESTS
from mmspec.zoo.world.mistakes import right_tokens
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import sample_scene

SEED = FIRST_SEED + (3 << 22)  # apart from the scenes of the drafters
CAPTIONS, HELD_OUT, BATCH = 512, 64, 32
SOURCE = "captions by vlm/small at temperatures 0.7 and 1.3, whose colors, kinds and positions the scene graph checks"


@dataclass(frozen=True, slots=True)
class JudgeRequests:
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        picture = render(sample_scene(SEED + index))
        return Example(f"judge-{index}", REQUESTS[index % len(REQUESTS)], (picture,))


def labels_of(processor: Any, answers: dict[str, Sequence[int]]) -> dict[str, list[bool]]:
    """Return whether each token of the answers to `JudgeRequests` is right, by key."""

    def decode(ids: Sequence[int]) -> str:
        return processor.decode(ids, skip_special_tokens=True)

    scenes = {key: sample_scene(SEED + int(key.removeprefix("judge-"))) for key in answers}
    return {key: right_tokens(decode, ids, scenes[key]) for key, ids in answers.items()}


def build(
    out: Path,
    work: Path,
    target: tuple[Any, Any],
    small: tuple[Any, Any],
    name: str = "vlm/judge",
    *,
    device: str = "cpu",
    captions: int = CAPTIONS,
    held_out: int = HELD_OUT,
    batch: int = BATCH,
) -> dict[str, Any]:
    """Train the head on captions of the small model, which makes enough mistakes to learn from, as the target reads
    them, and write fp16 weights with a card. It is measured on the last `held_out` captions, in whole batches; a later
    call reuses the captions in `work`."""
    (model, processor), requests = target, JudgeRequests(captions)
    small[0].to(device).eval()
    model.to(device).eval().requires_grad_(False)
    began = time.monotonic()
    with progress_bars() as progress:
        bar = progress.add_task("captions", total=captions, note="")
        answers = generate_target_answers(
            small[0],
            processor,
            requests,
            work / "judge" / f"captions_{captions}.jsonl",
            AnswerSettings(batch=batch, temperatures=(0.7, 1.3)),
            lambda done: progress.update(bar, advance=done),
        )
        right, teacher = labels_of(processor, answers), Teacher(model, processor, answers, precision="no")
        bar, parts = progress.add_task(name, total=captions, note=""), []
        for first in range(0, captions, batch):
            examples = [requests[index] for index in range(first, min(first + batch, captions))]
            parts.append(judged_tokens(teacher, examples, right))
            progress.update(bar, advance=len(examples))
        tail = -(-held_out // batch)
        head = train_judge(JudgedTokens.joined(parts[:-tail]))
        figures = judge_figures(head, JudgedTokens.joined(parts[-tail:]))
        progress.update(bar, note=note_of(figures))
    wrong = sum(int((~part.right).sum()) for part in parts)
    head.save_pretrained(out, dtype=torch.float16)
    facts = {
        "target": "vlm",
        "captions": captions,
        "tokens": sum(len(part.right) for part in parts),
        "wrong_tokens": wrong,
        "training": {"seconds": round(time.monotonic() - began, 1), **rounded(figures)},
    }
    return write_card(out, name, head, SOURCE, **facts)
