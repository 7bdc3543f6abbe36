"""A turn of a conversation: its new pictures, the visibility of its tokens, and the state of earlier turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.fingerprint import Fingerprint
from mmspec.core.round.cache import CacheSnapshot, SlotCache
from mmspec.vlm.architectures import Parts
from mmspec.vlm.prefill import UnreadPrompt

# prompt inputs other than pictures
_TEXT = {"inputs", "input_ids", "attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids", "inputs_embeds",
         "moe_mm_token_type_ids", "cross_attention_mask", "num_return_sequences", "logits_to_keep", "use_cache"}  # fmt: skip


def picture_inputs(inputs: Mapping[str, object]) -> dict[str, object]:
    sequences = {name: value for name, value in inputs.items() if isinstance(value, Tensor | list | tuple)}
    return {name: value for name, value in sequences.items() if name not in _TEXT}


def pixel_names(inputs: Mapping[str, object]) -> set[str]:
    pictures = picture_inputs(inputs).items()
    return {name for name, value in pictures if isinstance(value, Tensor) and value.is_floating_point()}


def added_pictures(earlier: Mapping[str, object], now: Mapping[str, object]) -> dict[str, object] | None:
    """Return the inputs of a turn's new pictures, empty without any; None if they cannot be separated. Both arguments
    are `picture_inputs`, for all pictures until then. The new part of an input follows along the first axis that has
    grown; other axes may have more padding. Changed pictures of earlier turns are refused."""
    if not now:
        return {}
    if not earlier:
        return dict(now)
    if set(earlier) != set(now):
        return None
    added = {}
    for name, new in now.items():
        old = earlier[name]
        if isinstance(new, Tensor) and isinstance(old, Tensor):
            part = _grown(name, old, new)
        else:
            part = new[len(old) :] if list(new[: len(old)]) == list(old) else None
        if part is None:
            return None
        if len(part):
            added[name] = part
    return added


def _grown(name: str, old: Tensor, new: Tensor) -> Tensor | None:
    """Return the new part of a tensor, empty if it has not grown; None if it cannot be separated."""
    if old.shape == new.shape:
        if torch.equal(old.to(new.device), new):
            return new[:0]
        if new.is_floating_point():
            raise ValueError(
                f"{name}: expected the pictures of earlier turns first and unchanged, got other pictures; pass "
                "all pictures of the conversation, or begin a new conversation"
            )
        return None  # a count, such as the pictures of a row, has no separate value for the new pictures
    if old.dim() != new.dim():
        return None
    axis = next(n for n, sizes in enumerate(zip(old.shape, new.shape, strict=True)) if sizes[0] != sizes[1])
    if any(a > b for a, b in zip(old.shape, new.shape, strict=True)):
        return None
    if not torch.equal(new[tuple(slice(0, size) for size in old.shape)], old.to(new.device)):
        return None
    return new.narrow(axis, old.shape[axis], new.shape[axis] - old.shape[axis])


_TYPES = ("token_type_ids", "mm_token_type_ids")


def visibility_mask(parts: Parts, ids: Tensor, inputs: Mapping[str, object], start: int) -> Tensor | None:
    """Return which tokens from `start` on see each other, without windows and chunks, bool [1, n, n]; None if cached
    tokens before `start` see some of them. `ids` is the whole prompt, int64 [1, P]; some classes decide by token types
    in `inputs`."""
    count = ids.shape[1]
    causal = torch.ones(1, count - start, count - start, dtype=torch.bool, device=ids.device).tril()
    types = {name: inputs[name] for name in _TYPES if isinstance(inputs.get(name), Tensor)}
    make = getattr(parts.model, "create_masks_for_generate", None)
    if make is None or not types:
        return causal
    embeds = torch.empty(1, count, 0, dtype=parts.dtype, device=ids.device)
    masks = make(
        config=parts.model.config,
        inputs_embeds=embeds,
        attention_mask=None,
        position_ids=None,
        is_first_iteration=True,
        **{CACHE: None},
        **types,
    )
    for mask in masks.values() if isinstance(masks, dict) else [masks]:
        if isinstance(mask, Tensor) and mask.dim() == 4:
            seen = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
            if bool(seen[:, :start, start:].any()):
                return None
            causal = causal | seen[:, start:, start:].triu(1)
    return causal


@dataclass(frozen=True, slots=True)
class StateCheckpoint:
    """A place in a prompt, behind `count` tokens, that layers with states can go back to."""

    count: int
    mark: CacheSnapshot
    hidden: Tensor  # float [1, 1, F], the states of the last of these tokens, as drafters read them


@dataclass(frozen=True, slots=True)
class Turn:
    """The state of earlier turns for a request."""

    start: int = 0  # prompt tokens in `cache`; 0 if the prompt is read from its first token
    cache: SlotCache | None = None  # None with `start` 0
    rest: UnreadPrompt | None = None  # the part of the prompt to read; None with `start` 0
    before: Tensor | None = None  # float [1, 1, F], of token start - 1; None if the drafter has read it
    forget: int = 0  # pairs read by the drafter that no longer belong to the prompt
    tail: int = 0  # last prompt tokens that a later turn may render otherwise; 0 if unknown
    function: Fingerprint | None = None  # of the model at the start of the turn
    drafting: Fingerprint | None = None  # of the drafter's modules at the start of the turn
