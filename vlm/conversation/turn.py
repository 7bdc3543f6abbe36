"""A turn of a conversation: its new pictures, the visibility of its tokens, and the state of earlier turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.cache import CacheSnapshot, SlotCache
from mmspec.core.compat import CACHE
from mmspec.core.fingerprint import Fingerprint
from mmspec.vlm.architectures import Parts
from mmspec.vlm.prefill import UnreadPrompt

# prompt inputs other than pictures
_TEXT = {"inputs", "input_ids", "attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids", "inputs_embeds",
         "moe_mm_token_type_ids", "cross_attention_mask", "num_return_sequences", "logits_to_keep", "use_cache"}  # fmt: skip


def picture_inputs(inputs: Mapping[str, object]) -> dict[str, object]:
    """Return a prompt's inputs that contain or describe pictures: tensors and lists."""
    sequences = {name: value for name, value in inputs.items() if isinstance(value, Tensor | list | tuple)}
    return {name: value for name, value in sequences.items() if name not in _TEXT}


def pixel_names(inputs: Mapping[str, object]) -> set[str]:
    """Return the names of the picture inputs that a vision tower encodes."""
    pictures = picture_inputs(inputs).items()
    return {name for name, value in pictures if isinstance(value, Tensor) and value.is_floating_point()}


def added_pictures(earlier: Mapping[str, object], now: Mapping[str, object]) -> dict[str, object] | None:
    """Return the inputs of the pictures that a turn adds.

    Each input is compared with its earlier value: the new part follows along the first axis that has grown. Other axes
    may have more padding.

    Args:
        earlier: the `picture_inputs` of the previous turn, for all pictures until then.
        now: the `picture_inputs` of this turn, for all pictures so far.

    Returns:
        The inputs of the new pictures, empty without new pictures; None if the new part cannot be separated.

    Raises:
        ValueError: pictures of earlier turns have changed.
    """
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
            raise ValueError(f"{name}: expected the pictures of earlier turns first and unchanged, got other pictures; pass "
                             "all pictures of the conversation, or begin a new conversation")  # fmt: skip
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
    """Return which tokens from `start` on see each other, without windows and chunks.

    Args:
        parts: the model's parts.
        ids: int64 [1, P], the whole prompt.
        inputs: the prompt's inputs; some classes decide the visibility by the token types among them.
        start: the number of cached tokens.

    Returns:
        bool [1, n, n]; None if tokens before `start` see some of the tokens after it.
    """
    count = ids.shape[1]
    causal = torch.ones(1, count - start, count - start, dtype=torch.bool, device=ids.device).tril()
    types = {name: inputs[name] for name in _TYPES if isinstance(inputs.get(name), Tensor)}
    make = getattr(parts.model, "create_masks_for_generate", None)
    if make is None or not types:
        return causal
    embeds = torch.empty(1, count, 0, dtype=parts.dtype, device=ids.device)
    masks = make(config=parts.model.config, inputs_embeds=embeds, attention_mask=None, position_ids=None,
                 is_first_iteration=True, **{CACHE: None}, **types)  # fmt: skip
    for mask in masks.values() if isinstance(masks, dict) else [masks]:
        if isinstance(mask, Tensor) and mask.dim() == 4:
            seen = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
            if bool(seen[:, :start, start:].any()):
                return None
            causal = causal | seen[:, start:, start:].triu(1)
    return causal


@dataclass(frozen=True, slots=True)
class StateCheckpoint:
    """A place in a prompt that layers with states can go back to.

    Attributes:
        count: the number of tokens before the place.
        mark: the snapshot of the cache at the place.
        hidden: float [1, 1, F], the hidden states of the last of these tokens, as drafters read them.
    """

    count: int
    mark: CacheSnapshot
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class Turn:
    """The state of earlier turns for a request.

    Attributes:
        start: the number of prompt tokens in `cache`; 0 if the prompt is read from its first token.
        cache: the cache with these tokens; None with `start` 0.
        rest: the part of the prompt to read; None with `start` 0.
        before: float [1, 1, F], the states of token start - 1; None if the drafter has already read it with its successor.
        forget: the number of pairs read by the drafter that no longer belong to the prompt.
        tail: the number of last prompt tokens that a later turn may render otherwise; 0 if unknown.
        function: the fingerprint of the model at the start of the turn.
        drafting: the fingerprint of the drafter's modules at the start of the turn.
    """

    start: int = 0
    cache: SlotCache | None = None
    rest: UnreadPrompt | None = None
    before: Tensor | None = None
    forget: int = 0
    tail: int = 0
    function: Fingerprint | None = None
    drafting: Fingerprint | None = None
