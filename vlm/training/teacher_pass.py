"""The teacher pass: what a live or stored target says about a batch of answered requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mmspec.vlm.architectures import Parts
from mmspec.vlm.capture import watch
from mmspec.vlm.drafters.prompt_view import PromptView


@dataclass(slots=True)
class TeacherBatch:
    """States of one batch; rows may be padded on both sides.

    ids: int64 [B, T].   answer: bool [B, T], tokens of answers.   padding: bool [B, T], None where there is none.
    embeds: float [B, T, H], merged input embeddings.   last: float [B, T, H], what the head reads.
    hidden: float [B, T, F], what the drafter reads: `last` itself, or several levels side by side.
    place: int64 [B, T] or [A, B, T], the target's positions; None of a batch that was stored.
    """

    ids: Tensor
    answer: Tensor
    embeds: Tensor
    last: Tensor
    hidden: Tensor
    padding: Tensor | None = None
    place: Tensor | None = None

    def prompt_view(self, parts: Parts) -> PromptView:
        """The pairs a drafter reads of it."""
        view = PromptView.of(
            self.ids, self.embeds, self.hidden, parts.placeholders, parts.tokens_per_image, self.padding, self.answer
        )
        view.place = None if self.place is None else self.place[..., 1:]
        return view

    def with_noise(self, width: float) -> TeacherBatch:
        """The batch with uniform noise of `width` * 512 / length on the states the drafter reads, from torch's generator.

        length: of the row without its padding, as the public code adds noise before it pads.
        """
        length = self.ids.new_tensor(self.ids.shape[1]) if self.padding is None else (~self.padding).sum(1)
        scale = width * 512 / length.clamp(min=1).view(-1, 1, 1)
        return replace(self, hidden=self.hidden + (torch.rand_like(self.hidden) - 0.5) * scale)


@torch.no_grad()
def teacher_pass(parts: Parts, inputs: dict, answer: Tensor, levels: tuple[int, ...] | None = None) -> TeacherBatch:
    """Runs the target over answered requests, with the positions it would give them itself.

    inputs: of the target's forward, answers included (see `with_answers`).   answer: bool [B, T].
    levels: decoder layers whose inputs the drafter reads, None for the last states.
    """
    mask = inputs.get("attention_mask")
    prepared = parts.model.prepare_inputs_for_generation(
        inputs["input_ids"], is_first_iteration=True, use_cache=False, logits_to_keep=1,
        **_positions(parts.model, inputs), **{k: v for k, v in inputs.items() if k != "input_ids"},
    )  # fmt: skip
    with watch(parts.decoder, levels) as seen:
        parts.model(**prepared, return_dict=True)
    padding = None if mask is None or bool(mask.all()) else mask == 0
    hidden = seen.hidden if levels is None else seen.levels
    place = prepared.get("position_ids")
    return TeacherBatch(inputs["input_ids"], answer, seen.embeds, seen.hidden, hidden, padding, place)


def _positions(model: nn.Module, inputs: dict) -> dict:
    """position_ids as `generate` would make them: M-RoPE's three axes where the model has them."""
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    if hasattr(model, "_prepare_position_ids_for_generation"):
        ids = model._prepare_position_ids_for_generation(inputs["input_ids"], dict(inputs, attention_mask=mask))
        return {"position_ids": ids}
    return {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
