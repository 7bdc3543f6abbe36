"""How far back every layer of a model sees, found by gradients: no config field or class name says it for all classes."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

from mmspec.core.cache import CrossLayer, EmptyLayer
from mmspec.core.layer_plan import LayerSpec, as_decoder_masks
from mmspec.vlm.architectures import Parts
from mmspec.vlm.prefill import wrapped_logits
from mmspec.vlm.proof.trial import TrialMismatch, ordinary_tokens


def check_receptive_field(parts: Parts, slots: int) -> None:
    """One pass of one token behind `slots` cached ones whose values carry gradients: a slot without one is not seen.

    Raises TrialMismatch that names the first layer which does not see them all.
    """
    if any(layer.slots and layer.states for layer in parts.plan.layers):
        return  # layers of both kinds in one look no further back than their mask, or the trial finds out
    seen = ordinary_tokens(parts, 1, 2)
    layers = [_shape_layer(layer) for layer in parts.plan.layers]
    _run(parts, seen[:, :1], 0, Cache(layers=layers))
    layers = [
        _SlotLayer(one.shape, slots, one.like) if isinstance(one, _ShapeLayer) and one.shape else one for one in layers
    ]
    with torch.enable_grad():
        for one in layers:
            if isinstance(one, _StateLayer):
                one.copy_states()
        logits = _run(parts, seen[:, 1:], slots, Cache(layers=layers))
        values = {number: one.values for number, one in enumerate(layers) if isinstance(one, _SlotLayer)}
        grads = torch.autograd.grad(logits[0, -1].float().square().sum(), list(values.values()), allow_unused=True)
    for layer, grad in zip(values, grads, strict=True):
        hidden = slots if grad is None else int((grad.float().abs().amax((0, 1, 3)) == 0).sum())
        if hidden:
            raise TrialMismatch(f"layer {layer} that sees {slots - hidden} of {slots} earlier tokens")


def _run(parts: Parts, ids: Tensor, place: int, cache: Cache) -> Tensor:
    full = parts.like.new_zeros(1, 1, 1, place + 1)  # what windows hide is their masks' to say
    mask = as_decoder_masks(parts.plan, full, [full] * len(parts.plan.narrow))
    table = parts.learned_positions
    # padded prompts have more slots than a learned table has positions; what a layer sees does not hang on them
    position = torch.full_like(ids, place if table is None else min(place, table - 1))
    inputs = dict(input_ids=ids, position_ids=position, attention_mask=mask, past_key_values=cache, use_cache=True)
    return wrapped_logits(parts, inputs)


class _Layer(CacheLayerMixin):
    """Base of the layers below: they hold nothing between passes."""

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
    """Notes the shapes of one token's keys and values, and where they are."""

    shape: tuple[torch.Size, torch.Size] | None = None
    like: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.shape, self.like = (key_states.shape, value_states.shape), key_states[:0]
        return key_states, value_states


def _shape_layer(layer: LayerSpec) -> object:
    if layer.states:
        return _StateLayer(number_of_states=layer.states)
    return _ShapeLayer() if layer.slots else CrossLayer() if layer.kind == "cross" else EmptyLayer()


class _StateLayer(LinearAttentionLayer):
    """Takes new states as they come: no gradient passes a layer whose old state was overwritten."""

    def copy_states(self) -> None:
        """Copies the states, which a class may overwrite: autograd forbids that for views made without gradients, where a
        model's weights ask for some."""
        for states in (self.conv_states, self.recurrent_states):
            states.update({n: None if one is None else one.clone() for n, one in states.items()})

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs) -> Tensor:
        if not self.is_recurrent_states_initialized[state_idx]:
            self.lazy_initialization(recurrent_states=recurrent_states, state_idx=state_idx)
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


class _SlotLayer(_Layer):
    """Slots of equal keys, so that attention spreads over all that it sees, and values that carry gradients."""

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
