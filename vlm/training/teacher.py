"""The live target as a teacher: its batches, made when a step needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.vlm.architectures import take_apart
from mmspec.vlm.training.examples import Example, encode, given_answer, with_answers
from mmspec.vlm.training.teacher_pass import TeacherBatch, teacher_pass


class Teacher:
    """Teacher batches of answered examples.

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

    def __call__(self, examples: Sequence[Example]) -> TeacherBatch:
        """What the target says about these examples.   Raises ValueError for an example without an answer."""
        inputs = {name: value.to(self.model.device) for name, value in encode(self.processor, examples).items()}
        pad = getattr(self.processor, "tokenizer", self.processor).pad_token_id or 0
        inputs, answer = with_answers(inputs, [self._answer(example) for example in examples], pad)
        with self.autocast:
            return cut(teacher_pass(self.parts, inputs, answer, self.levels), self.longest)

    def _answer(self, example: Example) -> Sequence[int]:
        if self.answers is not None:
            if not self.answers.get(example.key):
                raise ValueError(f"answers: expected one for {example.key!r}, got none; make them with answer_all")
            return self.answers[example.key]
        return given_answer(self.processor, example)


def cut(batch: TeacherBatch, longest: int | None) -> TeacherBatch:
    """The first `longest` tokens of every row; padding in front of them does not count and goes behind them."""
    if longest is None or batch.ids.shape[1] <= longest:
        return batch
    order = None if batch.padding is None else batch.padding.byte().argsort(dim=1, stable=True)[:, :longest]

    def first(field: Tensor) -> Tensor:
        if order is None:
            return field[:, :longest]
        return field.gather(1, order if field.dim() == 2 else order[..., None].expand(-1, -1, field.shape[-1]))

    last = first(batch.last)
    hidden = last if batch.hidden is batch.last else first(batch.hidden)
    padding = None if order is None else first(batch.padding)
    padding = None if padding is None or not bool(padding.any()) else padding
    place = batch.place
    if place is not None:
        place = place[..., :longest] if order is None else place.gather(-1, order.expand(*place.shape[:-2], -1, -1))
    return TeacherBatch(first(batch.ids), first(batch.answer), first(batch.embeds), last, hidden, padding, place)


@torch.no_grad()
def to_device(batch: TeacherBatch, device: torch.device) -> TeacherBatch:
    """The batch on another device, float32."""
    embeds, last = batch.embeds.to(device).float(), batch.last.to(device).float()
    hidden = last if batch.hidden is batch.last else batch.hidden.to(device).float()
    padding, place = (None if one is None else one.to(device) for one in (batch.padding, batch.place))
    return TeacherBatch(batch.ids.to(device), batch.answer.to(device), embeds, last, hidden, padding, place)
