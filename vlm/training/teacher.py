"""The target as a teacher: its states on a batch of answered requests, computed when a training step needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.hidden_states import Level, record_states
from mmspec.vlm.training.examples import Example, encode, reference_answer_ids, with_answers

ROOM = 1000  # the positions that "LongSpec" leaves free at a target's end


@dataclass(slots=True)
class VlmTeacherBatch:
    """The target's states on a batch, whose rows may be padded on both sides."""

    ids: Tensor  # int64 [B, T]
    answer: Tensor  # bool [B, T], the tokens of answers
    embeds: Tensor  # float [B, T, H], the input embeddings, with vision features in place
    last: Tensor  # float [B, T, H], the states that the head reads
    hidden: Tensor  # float [B, T, F], the states that the drafter reads: `last`, or several levels concatenated
    padding: Tensor | None = None  # bool [B, T]; None without padding
    place: Tensor | None = None  # int64 [B, T] or [A, B, T], the target's positions; None for a stored batch

    def prompt_view(self, parts: Parts) -> PromptView:
        """Return the pairs that a drafter reads."""
        view = PromptView.of(
            self.ids, self.embeds, self.hidden, parts.placeholders, parts.tokens_per_image, self.padding, self.answer
        )
        view.place = None if self.place is None else self.place[..., 1:]
        return view

    def with_noise(self, width: float) -> VlmTeacherBatch:
        """Return the batch with uniform noise of `width` * 512 / length on the states that the drafter reads, from
        torch's generator. The length is that of the row without padding, as in EAGLE's public code."""
        length = self.ids.new_tensor(self.ids.shape[1]) if self.padding is None else (~self.padding).sum(1)
        scale = width * 512 / length.clamp(min=1).view(-1, 1, 1)
        return replace(self, hidden=self.hidden + (torch.rand_like(self.hidden) - 0.5) * scale)


@torch.no_grad()
def teacher_pass(
    parts: Parts, inputs: dict, answer: Tensor, levels: tuple[Level, ...] | None = None, shift: int = 0
) -> VlmTeacherBatch:
    """Run the target over the inputs of `with_answers`, with the positions of `generate` and `answer` bool [B, T].
    `levels` are the states that the drafter reads, see `record_states`; None for the last. `shift` is the largest
    position of a moved token, see `shifted_positions`, 0 for none; the last `ROOM` positions of the target are left to
    answers."""
    mask = inputs.get("attention_mask")
    most = shift if parts.most_positions is None else min(shift, parts.most_positions - ROOM)
    prepared = forward_inputs(parts.model, inputs, 1, most)
    with record_states(parts.decoder, levels) as seen:
        parts.model(**prepared, return_dict=True)
    padding = None if mask is None or bool(mask.all()) else mask == 0
    hidden = seen.hidden if levels is None else seen.levels
    place = prepared.get("position_ids")
    return VlmTeacherBatch(inputs["input_ids"], answer, seen.embeds, seen.hidden, hidden, padding, place)


def shifted_positions(position: Tensor, ids: Tensor, most: int) -> Tensor:
    """Return positions, int64 [B, T] or [A, B, T], of which all but the first up to four of a row are moved by the same
    random number, at most to `most`; rows that already reach it are not moved. "LongSpec" (arXiv 2502.17421) so trains
    the distances between tokens of long prompts on short prompts. The number depends on the tokens alone, so that a run
    can be resumed."""
    room = most - int(position.max())
    if room < 1:
        return position
    generator = torch.Generator().manual_seed(int(ids.sum()))
    fixed, moved = (int(torch.randint(0, end, (1,), generator=generator)) for end in (5, room + 1))
    return torch.where(position < fixed, position, position + moved)


def forward_inputs(model: nn.Module, inputs: dict, keep: int, most: int = 0) -> dict:
    """Return the arguments of a forward pass over the inputs of `with_answers`, with logits of the last `keep` tokens
    and the positions of `generate`, moved up to `most` by `shifted_positions`; 0 moves none."""
    position = shifted_positions(_positions(model, inputs), inputs["input_ids"], most)
    return model.prepare_inputs_for_generation(
        inputs["input_ids"],
        is_first_iteration=True,
        use_cache=False,
        logits_to_keep=keep,
        position_ids=position,
        **{k: v for k, v in inputs.items() if k != "input_ids"},
    )


def _positions(model: nn.Module, inputs: dict) -> Tensor:
    """Return the position_ids that `generate` would use, with three axes for M-RoPE."""
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    if hasattr(model, "_prepare_position_ids_for_generation"):
        return model._prepare_position_ids_for_generation(inputs["input_ids"], dict(inputs, attention_mask=mask))
    return (mask.cumsum(-1) - 1).clamp(min=0)


class Teacher:
    """A function from answered examples to teacher batches. `answers` by key are None for the examples' reference
    answers, `levels` None for the last states. Rows are cut to `longest` tokens, None for no limit. "bf16" runs the
    target in autocast, "no" in its own dtype. `shift` is as in `teacher_pass`."""

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        answers: Mapping[str, Sequence[int]] | None,
        *,
        levels: tuple[Level, ...] | None = None,
        longest: int | None = None,
        precision: str = "bf16",
        shift: int = 0,
    ):
        self.model, self.processor, self.answers = model, processor, answers
        self.parts, self.levels, self.longest, self.shift = take_apart(model), levels, longest, shift
        self.autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bf16")

    def __call__(self, examples: Sequence[Example]) -> VlmTeacherBatch:
        return self.over(examples, [self.answer_of(example) for example in examples])

    def over(
        self,
        examples: Sequence[Example],
        answers: Sequence[Sequence[int]],
        taught: Sequence[Sequence[bool]] | None = None,
    ) -> VlmTeacherBatch:
        """Return the target's states on these examples with other answers. `taught` marks the tokens of each answer to
        train on; None for all."""
        inputs = {name: value.to(self.model.device) for name, value in encode(self.processor, examples).items()}
        pad = getattr(self.processor, "tokenizer", self.processor).pad_token_id or 0
        start = inputs["input_ids"].shape[1]
        inputs, answer = with_answers(inputs, answers, pad)
        for row, marks in enumerate(taught or ()):
            answer[row, start : start + len(marks)] &= answer.new_tensor(marks)
        with self.autocast:
            return truncate_rows(teacher_pass(self.parts, inputs, answer, self.levels, self.shift), self.longest)

    def answer_of(self, example: Example) -> Sequence[int]:
        if self.answers is not None:
            if not self.answers.get(example.key):
                raise ValueError(f"answers: expected an answer for {example.key!r}, got none; generate it first")
            return self.answers[example.key]
        return reference_answer_ids(self.processor, example)


def truncate_rows(batch: VlmTeacherBatch, longest: int | None) -> VlmTeacherBatch:
    """Return the first `longest` tokens of every row, not counting left padding, which moves to the right."""
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
    return VlmTeacherBatch(first(batch.ids), first(batch.answer), first(batch.embeds), last, hidden, padding, place)


@torch.no_grad()
def to_device(batch: VlmTeacherBatch, device: torch.device) -> VlmTeacherBatch:
    """Return the batch on another device, in float32."""
    embeds, last = batch.embeds.to(device).float(), batch.last.to(device).float()
    hidden = last if batch.hidden is batch.last else batch.hidden.to(device).float()
    optional = (None if tensor is None else tensor.to(device) for tensor in (batch.padding, batch.place))
    return VlmTeacherBatch(batch.ids.to(device), batch.answer.to(device), embeds, last, hidden, *optional)
