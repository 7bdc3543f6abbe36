"""How far back every layer of a model sees, found by gradients: no config field or class name says it for all classes."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from mmspec.vlm.architectures import Parts
from mmspec.vlm.proof.differs import Differs
from mmspec.vlm.proof.ordinary_tokens import ordinary
from mmspec.vlm.requests import table_of_positions


def reaches(parts: Parts, slots: int) -> None:
    """One pass of one token behind `slots` cached ones whose values carry gradients: a slot without one is not seen.

    Raises Differs that names the first layer which does not see them all.
    """
    seen = ordinary(parts, 1, 2)
    shapes = _Shapes(parts.layers)
    _run(parts, seen[:, :1], 0, shapes)
    cache = _Slots([layer.shape for layer in shapes.layers], slots, parts.embed.weight)
    with torch.enable_grad():
        logits = _run(parts, seen[:, 1:], slots, cache)
        values = [layer.values for layer in cache.layers]
        grads = torch.autograd.grad(logits[0, -1].float().square().sum(), values, allow_unused=True)
    for layer, grad in enumerate(grads):
        hidden = slots if grad is None else int((grad.float().abs().amax((0, 1, 3)) == 0).sum())
        if hidden:
            raise Differs(f"layer {layer} that sees {slots - hidden} of {slots} earlier tokens")


def _run(parts: Parts, ids: Tensor, place: int, cache: Cache) -> Tensor:
    mask = parts.embed.weight.new_zeros(1, 1, 1, place + 1)
    table = table_of_positions(parts)
    # padded prompts have more slots than a learned table has positions; what a layer sees does not hang on them
    position = torch.full_like(ids, place if table is None else min(place, table - 1))
    inputs = dict(input_ids=ids, position_ids=position, attention_mask=mask, past_key_values=cache, use_cache=True)
    return parts.model(**inputs, return_dict=True).logits


class _Layer(CacheLayerMixin):
    """Base of the layers below: they hold nothing between passes."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.is_initialized, self.length = True, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        return None

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


class _ShapeLayer(_Layer):
    """Notes the shapes of one token's keys and values."""

    shape: tuple[torch.Size, torch.Size] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.shape = key_states.shape, value_states.shape
        return key_states, value_states


class _Shapes(Cache):
    def __init__(self, layers: int):
        super().__init__(layers=[_ShapeLayer() for _ in range(layers)])


class _SlotLayer(_Layer):
    """Slots of equal keys, so that attention spreads over all that it sees, and values that carry gradients."""

    def __init__(self, shape: tuple[torch.Size, torch.Size], slots: int, like: Tensor):
        super().__init__()
        (_, heads, _, key), (_, _, _, value) = shape
        self.length, self.past = slots, like.new_zeros(1, heads, slots, key)
        rng = torch.Generator().manual_seed(0)
        drawn = torch.randn(1, heads, slots, value, generator=rng)
        self.values = drawn.to(like).requires_grad_(True)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        return torch.cat([self.past, key_states], 2), torch.cat([self.values, value_states], 2)


class _Slots(Cache):
    def __init__(self, shapes: list[tuple[torch.Size, torch.Size]], slots: int, like: Tensor):
        super().__init__(layers=[_SlotLayer(shape, slots, like) for shape in shapes])
