"""Which tokens of a prompt see later ones, as the class's own masks say: pictures that are read as one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mmspec.vlm.architectures import Parts

_TYPES = ("token_type_ids", "mm_token_type_ids")


def sees(parts: Parts, ids: Tensor, inputs: Mapping[str, object], start: int) -> Tensor | None:
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
