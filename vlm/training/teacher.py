"""The live target as a teacher: lessons of a step, made when they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.vlm.architectures import take_apart
from mmspec.vlm.training.examples import Example, encode, given_answer, with_answers
from mmspec.vlm.training.lesson import Lesson, lesson_of


class Teacher:
    """Lessons of batches of answered examples.

    levels: decoder layers the drafter reads, None for the last states.   answers: by key; where None, the examples' own
    reference answers are tokenized.   longest: rows are cut to so many tokens.   precision: "bf16" runs the target in
    autocast, "no" as it is.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        answers: Mapping[str, Sequence[int]] | None,
        *,
        levels: tuple[int, ...] | None = None,
        longest: int | None = None,
        precision: str = "bf16",
    ):
        self.model, self.processor, self.answers = model, processor, answers
        self.parts, self.levels, self.longest = take_apart(model), levels, longest
        self.autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bf16")

    def __call__(self, examples: Sequence[Example]) -> Lesson:
        """What the target says about these examples.   Raises ValueError for an example without an answer."""
        inputs = {name: value.to(self.model.device) for name, value in encode(self.processor, examples).items()}
        pad = getattr(self.processor, "tokenizer", self.processor).pad_token_id or 0
        inputs, answer = with_answers(inputs, [self._answer(example) for example in examples], pad)
        with self.autocast:
            return cut(lesson_of(self.parts, inputs, answer, self.levels), self.longest)

    def _answer(self, example: Example) -> Sequence[int]:
        if self.answers is not None:
            if not self.answers.get(example.key):
                raise ValueError(f"answers: expected one for {example.key!r}, got none; make them with answer_all")
            return self.answers[example.key]
        return given_answer(self.processor, example)


def cut(lesson: Lesson, longest: int | None) -> Lesson:
    """The first `longest` tokens of every row; padding in front of them does not count and goes behind them."""
    if longest is None or lesson.ids.shape[1] <= longest:
        return lesson
    order = None if lesson.padding is None else lesson.padding.byte().argsort(dim=1, stable=True)[:, :longest]

    def first(field: Tensor) -> Tensor:
        if order is None:
            return field[:, :longest]
        return field.gather(1, order if field.dim() == 2 else order[..., None].expand(-1, -1, field.shape[-1]))

    last = first(lesson.last)
    hidden = last if lesson.hidden is lesson.last else first(lesson.hidden)
    padding = None if order is None else first(lesson.padding)
    padding = None if padding is None or not bool(padding.any()) else padding
    return Lesson(first(lesson.ids), first(lesson.answer), first(lesson.embeds), last, hidden, padding)


@torch.no_grad()
def to_device(lesson: Lesson, device: torch.device) -> Lesson:
    """The lesson on another device, float32."""
    embeds, last = lesson.embeds.to(device).float(), lesson.last.to(device).float()
    hidden = last if lesson.hidden is lesson.last else lesson.hidden.to(device).float()
    padding = None if lesson.padding is None else lesson.padding.to(device)
    return Lesson(lesson.ids.to(device), lesson.answer.to(device), embeds, last, hidden, padding)
