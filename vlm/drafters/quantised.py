"""A copy of the target with weights in eight or four bits, as its own drafter."""

from __future__ import annotations

import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.layers.fingerprint import made_once
from mmspec.core.length.controls import FixedLength
from mmspec.methods import MethodParts, method, value_of
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.small_model import SmallModel
from mmspec.vlm.hf_model import unwrapped

GROUP = 32  # the weights that share a scale in four bits


class RoundedLinear(nn.Module):
    """Weights of 8 bits with a scale for each output, or 4 with a scale for each group of 32 inputs, restored in every
    pass. Activations are not rounded, so a token's output depends on no other token. `stored` is int8 [out, in], or
    uint8 [out, groups, 16] with two weights a byte; `scale` [out, 1] or [out, groups, 1]."""

    def __init__(self, linear: nn.Linear, bits: Literal[8, 4]):
        super().__init__()
        self.in_features, self.out_features, self.bits = linear.in_features, linear.out_features, bits
        self.bias = linear.bias
        weight, largest = linear.weight.detach().float(), 2 ** (bits - 1) - 1
        if bits == 4:
            weight = F.pad(weight, (0, -self.in_features % GROUP)).unflatten(1, (-1, GROUP))
        scale = (weight.abs().amax(-1, keepdim=True) / largest).clamp_min(torch.finfo(torch.float32).tiny)
        rounded = (weight / scale).round().to(torch.int8)
        if bits == 4:
            low, high = (rounded + largest).to(torch.uint8).unflatten(-1, (2, -1)).unbind(-2)
            rounded = low | high << 4
        self.register_buffer("stored", rounded)
        self.register_buffer("scale", scale.to(linear.weight.dtype))

    @property
    def weight(self) -> Tensor:
        if self.bits == 8:
            return self.stored.to(self.scale.dtype) * self.scale
        both = torch.cat([self.stored & 15, self.stored >> 4], -1)
        return ((both.to(self.scale.dtype) - 7) * self.scale).flatten(1)[:, : self.in_features]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@torch.no_grad()
def quantised_copy(model: nn.Module, bits: Literal[8, 4] = 8) -> nn.Module:
    """Return a copy whose decoder and head have weights of 8 or 4 bits; it shares all others, such as the tower. As a
    target, it is decoded exactly for itself ("Quasar"), which is another distribution than the model's."""
    if bits not in (8, 4):
        raise ValueError(f"bits: expected 8 or 4, got {bits!r}; choose one of them")
    model = unwrapped(model)
    parts = take_apart(model)
    memo: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for part in (parts.decoder, parts.head):
        layers = [layer for layer in part.modules() if type(layer) is nn.Linear]
        memo |= {id(layer): RoundedLinear(layer, bits) for layer in layers}
    copied = copy.deepcopy(model, memo)
    if not any(isinstance(layer, RoundedLinear) for layer in copied.modules()):
        raise ValueError(
            f"model: expected linear layers of torch in the decoder, got none in {type(model).__name__}; "
            "draft with another model"
        )
    return copied.eval()


@method(
    "quantised",
    domain="vlm",
    kind="drafter",
    title="a quantised copy of the target",
    exact=True,
    order=25,
    drafts=("sampled chain",),
    steps=("model", 0, 0),
    about="a chain from the target with weights in eight or four bits",
    paper="Quasar: Quantized Self-Speculative Acceleration for Rapid Inference via Memory-Efficient Verification",
)
def quantised(parts: MethodParts, bits: int = 8, chain: int = 5, length: str | None = None) -> SmallModel:
    """Return `SmallModel` over a quantised copy of the target.

    Args:
        parts: The target.
        bits: The bits of a weight, 8 or 4.
        chain: The tokens of a draft.
        length: The controller in the chain's place, such as (confidence:threshold=0.4,longest=8).
    """
    control, model = value_of(length, "vlm", "controller", parts), unwrapped(parts.model)
    # weights that change later only make the copy's drafts worse
    copied = made_once(model, ("quantised", bits), lambda: quantised_copy(model, bits), model)
    return SmallModel(copied, FixedLength(chain) if control is None else control)
