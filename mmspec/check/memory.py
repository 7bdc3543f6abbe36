"""The memory of a model, a request and a drafter, from shapes alone."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.check.report import MemoryNeeds
from mmspec.check.skeleton import Skeleton
from mmspec.vlm.architectures import Parts

UNITS = ("B", "kB", "MB", "GB", "TB")


def memory_of(skeleton: Skeleton, dtype: torch.dtype) -> MemoryNeeds:
    """Return the memory of a model and of its requests.

    Keys, values and states are measured on a pass of a single token on the meta device, so that latent, grouped and
    recurrent layers count with their real sizes.

    Args:
        skeleton: The model without weights.
        dtype: The precision of the weights and the cache.
    """
    counted = sum(weight.numel() for weight in skeleton.model.parameters())
    name, size = str(dtype).removeprefix("torch."), dtype.itemsize
    if skeleton.parts is None:
        return MemoryNeeds(name, counted, counted * size, note="The cache of a refused class is not measured.")
    layers = _cache_layers(skeleton.parts, dtype)
    if layers is None:
        heads = _numbers_by_heads(skeleton)
        note = "The class gives no cache without weights" + (
            "." if heads is None else "; a token's is that of its heads."
        )
        return MemoryNeeds(name, counted, counted * size, None if heads is None else heads * size, note=note)
    slots = sum(value.numel() * size for layer in layers for value in _slots(layer))
    states = sum(value.nbytes for layer in layers for value in _states(layer))
    cross = any(layer.kind == "cross" for layer in skeleton.parts.plan.layers)
    note = "Keys of pictures in layers of cross attention come on top." if cross else ""
    return MemoryNeeds(name, counted, counted * size, slots, states, note)


def _cache_layers(parts: Parts, dtype: torch.dtype) -> list[Any] | None:
    """The layers of transformers' own cache after a single token; None where the class cannot run without weights."""
    ids = torch.zeros(1, 1, dtype=torch.long, device="meta")
    for kind in (dtype, torch.bfloat16):  # some kernels of experts know half precision alone
        try:
            with torch.no_grad():
                return list(parts.decoder.to(kind)(input_ids=ids, use_cache=True).past_key_values.layers)
        except Exception:  # a class raises errors of any class over tensors without contents
            continue
    return None


def _numbers_by_heads(skeleton: Skeleton) -> int | None:
    """The number of keys and values of a token by the heads of the config; None where layers store anything else."""
    config, plan = skeleton.config.get_text_config(decoder=True), skeleton.parts.plan
    heads = getattr(config, "num_attention_heads", None)
    if not heads or plan.stateful or getattr(config, "kv_lora_rank", None):
        return None
    width = getattr(config, "head_dim", None) or skeleton.parts.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    return 2 * sum(layer.slots for layer in plan.layers) * groups * width


def _slots(layer: Any) -> list[Tensor]:
    """The keys and values of a token."""
    return [value for name in ("keys", "values") if torch.is_tensor(value := getattr(layer, name, None))]


def _states(layer: Any) -> list[Tensor]:
    """Convolution windows and recurrent states."""
    states = (getattr(layer, name, None) for name in ("conv_states", "recurrent_states"))
    return [value for named in states if isinstance(named, dict) for value in named.values() if torch.is_tensor(value)]


def room_of(device: str) -> int | None:
    """Return the bytes that a device has for weights: the free memory of a GPU, or all memory of the machine.

    Args:
        device: "cpu", "cuda" or "cuda:N".

    Returns:
        The bytes, None where they are unknown.
    """
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # a system without these names
        return None


def parameters_of(drafter: nn.Module) -> int:
    """Return the number of weights of a drafter, without those that it shares with its target."""
    return sum(weight.numel() for weight in drafter.parameters())


def in_units(count: float) -> str:
    """Return a number of bytes as text, such as "1.5 MB"."""
    value = float(count)
    for unit in UNITS:
        if value < 1000 or unit == UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError("the last unit takes any number")
