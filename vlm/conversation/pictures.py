"""The pictures of a conversation, as its turns' inputs hold them: which of them a turn adds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# inputs of a prompt that are no pictures
_TEXT = {"inputs", "input_ids", "attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids", "inputs_embeds",
         "moe_mm_token_type_ids", "cross_attention_mask", "num_return_sequences", "logits_to_keep", "use_cache"}  # fmt: skip


def pictured(inputs: Mapping[str, object]) -> dict[str, object]:
    """Those of a prompt's inputs that are pictures or say how they are laid out: tensors and lists."""
    return {name: one for name, one in inputs.items() if name not in _TEXT and isinstance(one, Tensor | list | tuple)}


def pixels(inputs: Mapping[str, object]) -> set[str]:
    """The names of those that towers would read."""
    return {name for name, one in pictured(inputs).items() if isinstance(one, Tensor) and one.is_floating_point()}


def added(earlier: Mapping[str, object], now: Mapping[str, object]) -> dict[str, object] | None:
    """The inputs of the pictures that a turn adds: what of `now` stands behind `earlier`, along the one axis on which an input
    has grown; other axes may have been padded further. Empty where nothing is new.

    Both as `pictured` gives them, of all pictures so far. None where it cannot be told apart.
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
