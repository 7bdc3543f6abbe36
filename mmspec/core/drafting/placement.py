"""Placement: a drafter's weights where its target computes, in the target's precision; the user's own stay as they are."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mmspec.core.fingerprint import Fingerprint, fingerprint

# the last copy of each module: (its device and dtype, the fingerprint of the original, the copy); gone with the module
_COPIES: WeakKeyDictionary[nn.Module, tuple[tuple, Fingerprint, nn.Module]] = WeakKeyDictionary()


def alongside(module: nn.Module, like: Tensor) -> nn.Module:
    """The module itself where its floating-point weights have the device and dtype of `like`, else a copy that has.

    The copy is made once and again when weights have changed since; requests that share the module share it. What is no
    weight (shapes, settings) belongs to both.
    """
    tensors = (*module.parameters(), *module.buffers())
    if all(_fits(tensor, like) for tensor in tensors):
        return module
    place, now = (like.device, like.dtype), fingerprint(module)
    kept = _COPIES.get(module)
    if kept is None or kept[0] != place or not now.same(kept[1]):
        kept = _COPIES[module] = place, now, _copy(module, like)
    copied = copy.copy(kept[2])
    copied.__dict__.update(_settings(module))
    return copied


def _fits(tensor: Tensor, like: Tensor) -> bool:
    return tensor.device == like.device and (tensor.dtype == like.dtype or not tensor.is_floating_point())


def _settings(module: nn.Module) -> dict:
    return {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")}


@torch.no_grad()
def _copy(module: nn.Module, like: Tensor) -> nn.Module:
    memo: dict[int, object] = {id(value): value for value in _settings(module).values()}
    for tensor in (*module.parameters(), *module.buffers()):
        cast = tensor.detach().to(device=like.device, dtype=like.dtype if tensor.is_floating_point() else None)
        if isinstance(tensor, nn.Parameter):
            cast = nn.Parameter(cast, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = cast
    return copy.deepcopy(module, memo)
