"""A conversation's request on its way through `transformers.generate`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.loop import Drafter
from mmspec.vlm.architectures import Parts, take_apart
from mmspec.vlm.conversation.past import Past
from mmspec.vlm.conversation.pictures import pictured, pixels
from mmspec.vlm.conversation.turn import Turn
from mmspec.vlm.prompts import first_inputs, first_positions, own_inputs


def past_of(inputs: dict) -> Past | None:
    """The conversation among the arguments of a `generate` call."""
    past = inputs.get("past_key_values")
    return past if isinstance(past, Past) else None


def unread(past: Past, model: nn.Module, inputs: dict, drafter: Drafter | None) -> tuple[dict, Turn]:
    """The arguments of `generate` without the pixels that nothing will read, and the turn: transformers encodes pictures
    before it calls us. inputs: the arguments as given; pictures that are left out are those of the turns before.

    Raises ValueError as `Past.check` and `Past.turn` do, and where the prompt is no row of ids.
    """
    ids = inputs.get("input_ids", inputs.get("inputs"))
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.shape[1]:
        raise ValueError(
            "input_ids: expected the ids of the whole conversation, got none; pass what the processor makes of it"
        )
    past.check(model, ids.shape[0])
    parts = take_apart(model)
    inputs = past.with_pictures(parts, ids, inputs)
    if inputs.get("attention_mask") is None:  # else the padding's id would count as padding where it was said
        inputs = inputs | {"attention_mask": torch.ones_like(ids)}
    prompt = own_inputs(inputs, model.generation_config)
    turn = past.turn(parts, ids, prompt, drafter)
    dropped = pixels(pictured(prompt)) if turn.start else set()
    return {name: one for name, one in inputs.items() if name not in dropped}, turn


def placed(past: Past, turn: Turn, parts: Parts, ids: Tensor, kwargs: dict) -> Turn:
    """The turn with the positions that the class gives the whole prompt. kwargs: as `generate` prepared them.

    Raises ValueError for padding, and as `Past.expects` does.
    """
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError(
            "attention_mask: expected the one row of a conversation without padding, got zeros; give it ones"
        )
    if not turn.start:
        return turn
    inputs = first_inputs(parts, ids, kwargs, SlotCache(parts.plan, 1))
    positions = first_positions(inputs, ids, kwargs["position_ids"])[..., turn.start :]
    past.expects(turn, positions)
    return replace(turn, rest=replace(turn.rest, positions=positions))
