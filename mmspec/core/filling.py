"""Modules filled with the tensors of a published state dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from mmspec.core.loading import mismatch

Module = TypeVar("Module", bound=nn.Module)


def fill(model: Module, weights: Mapping[str, Tensor], wide: str = "") -> Module:
    """The model with `weights` as its own, without a copy where the dtype is theirs all along, frozen and in eval mode.

    wide: how the names of those end that are never float16.
    Raises ValueError, one sentence, for missing, unknown and misshapen tensors.
    """
    check_weights(model.state_dict(), weights)
    kept = {name for name in weights if wide and name.endswith(wide)}
    dtype = next(value for name, value in weights.items() if name not in kept).dtype
    dtype = dtype if dtype.is_floating_point else torch.float32
    wider = torch.float32 if dtype == torch.float16 else dtype
    cast = {name: value.detach().to(wider if name in kept else dtype) for name, value in weights.items()}
    model.load_state_dict(cast, assign=True)
    return model.eval().requires_grad_(False)


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError where `weights` are not those of a module with the tensors `own`."""
    if wrong := mismatch(own, weights):
        raise ValueError(f"sd: expected every published key in the shapes of the config, and no other, got {wrong}; pass the "
                         "whole state dict and the config it was made with")  # fmt: skip
