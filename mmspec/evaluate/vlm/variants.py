"""Variants of a drafter that bench rows compare: another shape, another length control, other weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from mmspec.core.drafting.shapes import Chain, Shape
from mmspec.core.length import FixedLength, LengthControl

DrafterChange = Callable[[Any], Any]
NOISE = 0.6  # of the weights' own spread; leaves the zoo's EAGLE an accept length below 2
HEAD = "vlm/specdecpp"  # in the zoo, made for vlm/eagle


def both(first: DrafterChange, second: DrafterChange | None) -> DrafterChange:
    """One change after another."""
    return first if second is None else lambda drafter: second(first(drafter))


def shaped(shape: Shape) -> DrafterChange:
    """Drafts in this shape."""
    return lambda drafter: drafter.with_shape(shape)


def chained(length: int | LengthControl) -> DrafterChange:
    """Drafts chains of a fixed or controlled length."""
    return shaped(Chain(FixedLength(length) if isinstance(length, int) else length))


def blocks(count: int) -> DrafterChange:
    """Drafts `count` tokens a pass."""
    return lambda drafter: drafter.with_block(count)


def whole_layer(drafter: Any) -> Any:
    """Reads prompts with the whole layer, as public code does, where ours computes keys and values alone.

    For drafters whose layer attends from its residual, such as MSD on LLaVA.
    """
    other = copy.copy(drafter)
    other._modules = dict(drafter._modules)
    layer = copy.copy(drafter.layer)
    layer.remember = lambda attend, rotary, cache: layer(attend, attend, rotary, cache, None)
    other.layer = layer
    return other


def with_goodput(drafter: Any) -> Any:
    """Drafts as many tokens as pay by measured costs, none where none pay."""
    from mmspec.core.goodput import Goodput

    return Goodput(drafter)


def with_lookup(drafter: Any) -> Any:
    """Prompt lookup beside the drafter in one tree."""
    from mmspec.vlm.drafters.merged import Merged

    return Merged(drafter)


def with_vision_skip(drafter: Any) -> Any:
    """Drafts nothing where the next token leans on the pictures."""
    from mmspec.vlm.drafters.viskip import VisionSkip

    return VisionSkip(drafter)


def with_acceptance_head(longest: int) -> DrafterChange:
    """Drafts chains that end on the word of the acceptance head the zoo has for the drafter."""

    def change(drafter: Any) -> Any:
        from mmspec import zoo
        from mmspec.vlm.drafters.specdecpp import AcceptanceStop

        return chained(AcceptanceStop(zoo.load(HEAD), longest=longest))(drafter)

    return change


def untrained(drafter: Any, seed: int = 0) -> Any:
    """A drafter of the same sizes and shape with fresh random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        other = type(drafter)(drafter.config)
    other.shapes = drafter.shapes
    weight = next(drafter.parameters())
    return other.to(device=weight.device, dtype=weight.dtype).eval().requires_grad_(False)


def weakened(drafter: Any, noise: float = NOISE, seed: int = 0) -> Any:
    """The drafter with Gaussian noise on its matrices, `noise` times each matrix's own standard deviation."""
    other = copy.deepcopy(drafter)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.dim() > 1:
                drawn = torch.randn(weight.shape, generator=random).to(device=weight.device, dtype=weight.dtype)
                weight += noise * weight.std() * drawn
    return other
