"""The measurement by gradients of how far back every layer of a model sees, which configs do not state reliably."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.layer_plan import LayerSpec, as_decoder_masks
from mmspec.core.round.cache import CrossLayer, EmptyLayer, StateLayer
from mmspec.core.round.split_trial import TrialMismatch
from mmspec.vlm.architectures import Parts
from mmspec.vlm.prefill import wrapped_logits
from mmspec.vlm.proof.trial import ordinary_tokens


def check_receptive_field(parts: Parts, slots: int) -> None:
    """A pass of a single token follows cached values with gradients; a slot whose gradient is zero is not seen."""
    if any(layer.slots and layer.states for layer in parts.plan.layers):
        return  # layers with both slots and states are limited by their mask, which the trial checks
    seen = ordinary_tokens(parts, 1, 2)
    layers = [_shape_layer(layer) for layer in parts.plan.layers]
    _run(parts, seen[:, :1], 0, Cache(layers=layers))
    layers = [
        _SlotLayer(layer.shape, slots, layer.like) if isinstance(layer, _ShapeLayer) and layer.shape else layer
        for layer in layers
    ]
    with torch.enable_grad():
        logits = _run(parts, seen[:, 1:], slots, Cache(layers=layers))
        values = {number: layer.values for number, layer in enumerate(layers) if isinstance(layer, _SlotLayer)}
        grads = torch.autograd.grad(logits[0, -1].float().square().sum(), list(values.values()), allow_unused=True)
    for layer, grad in zip(values, grads, strict=True):
        hidden = slots if grad is None else int((grad.float().abs().amax((0, 1, 3)) == 0).sum())
        if hidden:
            raise TrialMismatch(f"layer {layer} that sees {slots - hidden} of {slots} earlier tokens")


def _run(parts: Parts, ids: Tensor, place: int, cache: Cache) -> Tensor:
    full = parts.like.new_zeros(1, 1, 1, place + 1)  # no mask, so that only the layers themselves limit the view
    mask = as_decoder_masks(parts.plan, full, [full] * len(parts.plan.narrow))
    table = parts.learned_positions
    # padded prompts may have more slots than a learned table has positions; visibility does not depend on positions
    position = torch.full_like(ids, place if table is None else min(place, table - 1))
    inputs = dict(input_ids=ids, position_ids=position, attention_mask=mask, use_cache=True)
    return wrapped_logits(parts, inputs | {CACHE: cache})


class _Layer(CacheLayerMixin):
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        return None

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


class _ShapeLayer(_Layer):
    shape: tuple[torch.Size, torch.Size] | None = None
    like: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.shape, self.like = (key_states.shape, value_states.shape), key_states[:0]
        return key_states, value_states


def _shape_layer(layer: LayerSpec) -> object:
    if layer.states:
        # it never says that it has states, so a mixer reads every token like a prompt and writes into no tensor of the graph
        return StateLayer(layer.states)
    return _ShapeLayer() if layer.slots else CrossLayer() if layer.kind == "cross" else EmptyLayer()


class _SlotLayer(_Layer):
    """Slots with equal keys, so that attention spreads over all visible slots, and values with gradients."""

    def __init__(self, shape: tuple[torch.Size, torch.Size], slots: int, like: Tensor):
        super().__init__()
        (_, heads, _, key), (_, _, _, value) = shape
        self.length, self.past, self.is_initialized = slots, like.new_zeros(1, heads, slots, key), True
        self.keys = self.past
        rng = torch.Generator().manual_seed(0)
        drawn = torch.randn(1, heads, slots, value, generator=rng)
        self.values = drawn.to(like).requires_grad_(True)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        return torch.cat([self.past, key_states], 2), torch.cat([self.values, value_states], 2)
