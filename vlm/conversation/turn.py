"""A turn of a conversation: the pictures that it adds, the visibility of its tokens, and the state of the turns before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.cache import CacheSnapshot, SlotCache
from mmspec.core.fingerprint import Fingerprint
from mmspec.vlm.architectures import Parts
from mmspec.vlm.prefill import UnreadPrompt

# inputs of a prompt that are no pictures
_TEXT = {"inputs", "input_ids", "attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids", "inputs_embeds",
         "moe_mm_token_type_ids", "cross_attention_mask", "num_return_sequences", "logits_to_keep", "use_cache"}  # fmt: skip


def picture_inputs(inputs: Mapping[str, object]) -> dict[str, object]:
    """Those of a prompt's inputs that are pictures or say how they are laid out: tensors and lists."""
    return {name: one for name, one in inputs.items() if name not in _TEXT and isinstance(one, Tensor | list | tuple)}


def pixel_names(inputs: Mapping[str, object]) -> set[str]:
    """The names of those that towers would read."""
    return {name for name, one in picture_inputs(inputs).items() if isinstance(one, Tensor) and one.is_floating_point()}


def added_pictures(earlier: Mapping[str, object], now: Mapping[str, object]) -> dict[str, object] | None:
    """The inputs of the pictures that a turn adds: what of `now` stands behind `earlier`, along the one axis on which an input
    has grown; other axes may have been padded further. Empty where nothing is new.

    Both as `picture_inputs` gives them, of all pictures so far. None where it cannot be told apart.
    Raises ValueError where pictures of earlier turns are other ones now.
    """
    if not now:
        return {}
    if not earlier:
        return dict(now)
    if set(earlier) != set(now):
        return None
    found = {}
    for name, new in now.items():
        old = earlier[name]
        if isinstance(new, Tensor) and isinstance(old, Tensor):
            part = _grown(name, old, new)
        else:
            part = new[len(old) :] if list(new[: len(old)]) == list(old) else None
        if part is None:
            return None
        if len(part):
            found[name] = part
    return found


def _grown(name: str, old: Tensor, new: Tensor) -> Tensor | None:
    """What of a tensor is new, an empty one for nothing."""
    if old.shape == new.shape:
        if torch.equal(old.to(new.device), new):
            return new[:0]
        if new.is_floating_point():
            raise ValueError(f"{name}: expected the pictures of earlier turns first and unchanged, got other ones; give those "
                             "of the whole conversation, or begin a new one")  # fmt: skip
        return None  # a count, such as pictures of a row: what it says of the new ones alone is not known
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
    """bool [1, n, n], which of the tokens from `start` on each of them sees, windows and chunks aside; None where tokens
    before `start` see some of them. ids: int64 [1, P], of a whole prompt.

    inputs: of the prompt; the types of its tokens among them are what classes with such pictures go by.
    """
    count = ids.shape[1]
    causal = torch.ones(1, count - start, count - start, dtype=torch.bool, device=ids.device).tril()
    types = {name: inputs[name] for name in _TYPES if isinstance(inputs.get(name), Tensor)}
    make = getattr(parts.model, "create_masks_for_generate", None)
    if make is None or not types:
        return causal
    embeds = torch.empty(1, count, 0, dtype=parts.dtype, device=ids.device)
    made = make(config=parts.model.config, inputs_embeds=embeds, attention_mask=None, past_key_values=None, position_ids=None,
                is_first_iteration=True, **types)  # fmt: skip
    for mask in made.values() if isinstance(made, dict) else [made]:
        if isinstance(mask, Tensor) and mask.dim() == 4:
            seen = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
            if bool(seen[:, :start, start:].any()):
                return None
            causal = causal | seen[:, start:, start:].triu(1)
    return causal


@dataclass(frozen=True, slots=True)
class StateCheckpoint:
    """A place in a prompt that layers with states can go back to. count: tokens before it.   mark: the cache there.
    hidden: float [1, 1, F], the states behind the last of them, as drafters read them."""

    count: int
    mark: CacheSnapshot
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class Turn:
    """What a request is given of the turns before it.

    start: tokens of the prompt that `cache` holds; 0 where the prompt is read from its first token on.
    cache, rest: what holds them, and what is to be read; None with `start` 0.
    before: float [1, 1, F], the states behind token start - 1; None where that token is known to drafters with the one behind
        it.   forget: so many pairs that a drafter has read are no longer the prompt's.
    tail: so many of the prompt's last tokens may be other ones in a later turn's rendering; 0 where none is known to be.
    function: the fingerprint of the model when the turn opened.   drafting: that of the drafter's modules.
    """

    start: int = 0
    cache: SlotCache | None = None
    rest: UnreadPrompt | None = None
    before: Tensor | None = None
    forget: int = 0
    tail: int = 0
    function: Fingerprint | None = None
    drafting: Fingerprint | None = None
