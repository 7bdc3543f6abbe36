"""The memory of a model, a request and a drafter, from shapes alone."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from mmspec.check.skeleton import Skeleton
from mmspec.core.layers.compat import CACHE
from mmspec.vlm.architectures import Parts
from mmspec.vlm.memory_needs import MemoryNeeds, slots_of, states_of


def memory_of(skeleton: Skeleton, dtype: torch.dtype) -> MemoryNeeds:
    """Return the memory of a model and of its requests, weights and cache in `dtype`. A pass of a single token on the
    meta device measures it, so that latent, grouped and recurrent layers count with their real sizes."""
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
    slots = sum(value.numel() * size for layer in layers for value in slots_of(layer))
    states = sum(value.nbytes for layer in layers for value in states_of(layer))
    cross = any(layer.kind == "cross" for layer in skeleton.parts.plan.layers)
    note = "Keys of pictures in layers of cross attention come on top." if cross else ""
    return MemoryNeeds(name, counted, counted * size, slots, states, note)


def _cache_layers(parts: Parts, dtype: torch.dtype) -> list[Any] | None:
    """Return the layers of transformers' own cache after a token; None where the class cannot run without weights."""
    ids = torch.zeros(1, 1, dtype=torch.long, device="meta")
    for kind in (dtype, torch.bfloat16):  # some kernels of experts know half precision alone
        try:
            with torch.no_grad():
                return list(parts.decoder.to(kind)(input_ids=ids, use_cache=True)[CACHE].layers)
        except Exception:  # a class raises errors of any class over tensors without contents
            continue
    return None


def _numbers_by_heads(skeleton: Skeleton) -> int | None:
    """Return the keys and values of a token by the config's heads; None where layers store anything else."""
    config, plan = skeleton.config.get_text_config(decoder=True), skeleton.parts.plan
    heads = getattr(config, "num_attention_heads", None)
    if not heads or plan.stateful or getattr(config, "kv_lora_rank", None):
        return None
    width = getattr(config, "head_dim", None) or skeleton.parts.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    return 2 * sum(layer.slots for layer in plan.layers) * groups * width


def room_of(device: str) -> int | None:
    """Return the bytes for weights on "cpu" (all memory), "cuda" or "cuda:N" (free memory), None if unknown."""
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # a system without these names
        return None


def parameters_of(drafter: nn.Module) -> int:
    """Return the number of weights of a drafter, without those that it shares with its target."""
    return sum(weight.numel() for weight in drafter.parameters())
