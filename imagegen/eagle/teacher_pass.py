"""The teacher pass over given images: one pass over the prompt, one causal pass over the values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.imagegen.model import FeatureModel


@dataclass(slots=True)
class TeacherBatch:
    """R = C * B rows, the unconditional branch behind the conditional one where C is 2.

    prompt: float [R, P, H], the prompt's states.   padding: bool [R, P], or None.
    value: int64 [R, T - 1], the values fed.   state: float [R, T - 1, H], the states behind each of them.
    logits: float32 [R, T - 1, V], the target's raw log-weights of the value after each.
    """

    prompt: Tensor
    padding: Tensor | None
    value: Tensor
    state: Tensor
    logits: Tensor


@torch.no_grad()
def teacher_pass(model: FeatureModel, condition: object, values: Tensor, paired: bool) -> TeacherBatch:
    """The target's view of images. condition: as `prefill` takes it.   values: int64 [B, T], all T values of each image,
    forced ones included.   paired: whether the unconditional branch is wanted too.

    Raises ValueError for values of another number than the model generates.
    """
    total = model.geometry.total
    if values.dim() != 2 or values.shape[1] != total:
        raise ValueError(f"values: expected [B, {total}], as the model generates, got {list(values.shape)}; tokenise the "
                         "images at the model's resolution")  # fmt: skip
    copies = 2 if paired else 1
    cache = model.cache(model.layers, 2 * total, copies=copies)
    scored, slots = model.prefill(condition, cache, paired)
    if scored.prompt_hidden is None:
        raise ValueError(
            f"target: expected one that tells its prompt's hidden states, got {model.name}; train on another"
        )
    cache.advance(slots)
    value = values[:, :-1].to(model.device).repeat(copies, 1)
    count = value.shape[1]
    index = torch.arange(count, device=value.device).expand_as(value)
    causal = torch.ones(1, count, count, dtype=torch.bool, device=value.device).tril()
    seen = model.forward(value, index, cache.bias(causal, model.dtype), cache)
    padding = None if cache.hidden is None else cache.hidden[:, :slots]
    return TeacherBatch(scored.prompt_hidden, padding, value, seen.hidden, seen.logits)
