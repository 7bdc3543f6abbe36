"""The target's own answers, whose tokens a drafter learns to predict."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mmspec.io.files import append_lines, write_text_atomic
from mmspec.io.interrupts import Stopped, stop_requests
from mmspec.io.readers import read_placed_lines, read_text
from mmspec.vlm.architectures import placeholders_of
from mmspec.vlm.hf_model import class_generate
from mmspec.vlm.training.examples import Example, encode, reference_answer_ids


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    new_tokens: int = 128  # most tokens of an answer
    batch: int = 64  # rows
    temperatures: tuple[float, ...] = (0.0, 1.0)  # of successive batches, in turn; 0 is greedy
    seed: int = 0  # of sampling

    def __post_init__(self) -> None:
        if self.new_tokens < 1 or self.batch < 1 or not self.temperatures or min(self.temperatures) < 0:
            raise ValueError(f"expected new_tokens and batch of at least 1 and temperatures >= 0, got {self}")


def generate_target_answers(
    model: nn.Module,
    processor: Any,
    examples: Sequence[Example],
    file: Path,
    how: AnswerSettings = AnswerSettings(),
    on_batch: Callable[[int], None] = lambda done: None,
) -> dict[str, list[int]]:
    """Generate the target's answers, with the end token if it was generated, by key. They are stored in `file` (JSONL),
    from which a later call continues. A batch depends on its index alone, so a resumed run generates the same answers.
    SIGINT or SIGTERM stops after the running batch. `on_batch` gets the number of answers."""
    done = read_answers(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with stop_requests() as request:
        for number, first in enumerate(range(0, len(examples), how.batch)):
            chosen = [examples[i] for i in range(first, min(first + how.batch, len(examples)))]
            if all(example.key in done for example in chosen):
                continue
            temperature = how.temperatures[number % len(how.temperatures)]
            rows = _generate_batch(model, processor, chosen, how, temperature, how.seed + number)
            new = {example.key: ids for example, ids in zip(chosen, rows, strict=True)}
            lines = [json.dumps({"key": key, "temperature": temperature, "ids": ids}) for key, ids in new.items()]
            append_lines(file, lines)
            done |= new
            on_batch(len(chosen))
            if request.signal:
                raise Stopped(f"the answers made so far ({len(done)}) are kept in {file}", request.signal)
    return done


def answers_to_streams(
    source: Literal["own", "given"],
    model: nn.Module,
    processor: Any,
    streams: Sequence[Sequence[Example]],
    folder: Path,
    how: AnswerSettings,
    on_batch: Callable[[int, int], None],
) -> dict[str, Sequence[int]]:
    """Return the ids of the answers to all examples of one or two streams, by key: the target's own, generated in
    `folder`, or those of the examples. The streams are the examples with pictures or all examples, then texts.
    `on_batch` gets the number of answers so far and the total."""
    answers: dict[str, Sequence[int]] = {}
    if source == "given":
        for stream in streams:
            examples = (stream[i] for i in range(len(stream)))
            answers |= {example.key: reference_answer_ids(processor, example) for example in examples}
        return answers
    total, done = sum(map(len, streams)), 0

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        on_batch(done, total)

    for name, stream in zip(("answers", "text_answers"), streams, strict=False):
        answers |= generate_target_answers(model, processor, stream, folder / f"{name}.jsonl", how, on_rows)
    on_batch(total, total)
    return answers


@torch.no_grad()
def _generate_batch(model, processor, examples, how: AnswerSettings, temperature: float, seed: int) -> list[list[int]]:
    inputs = {name: value.to(model.device) for name, value in encode(processor, examples).items()}
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    torch.manual_seed(seed)
    # a placeholder in an answer would refer to a missing picture
    banned = {"suppress_tokens": list(placeholders_of(model.config)) or None}
    settings = banned | (sampling or {"do_sample": False})
    sequences = class_generate(model)(**inputs, max_new_tokens=how.new_tokens, **settings)
    ends = model.generation_config.eos_token_id
    ends = set() if ends is None else {ends} if isinstance(ends, int) else set(ends)
    rows = []
    for row in sequences[:, inputs["input_ids"].shape[1] :].tolist():
        stop = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
        rows.append(row[:stop])
    return rows


def read_answers(file: Path) -> dict[str, list[int]]:
    """Read the answers in a file of `generate_target_answers`, and remove an incomplete last line from the file."""
    if not file.exists():
        return {}
    answers = {}
    for place, record in read_placed_lines(file, torn=True):
        key, ids = record.get("key"), record.get("ids")
        if not isinstance(key, str) or not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise ValueError(f"{place}: expected a key and the ids of an answer, got {record}; delete the file")
        answers[key] = ids
    whole, end, rest = read_text(file).rpartition("\n")
    if rest:
        write_text_atomic(file, whole + end)
    return answers
