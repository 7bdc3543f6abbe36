"""Kinds of trained drafters: views of the registry of methods. Names are known without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mmspec.methods import MethodInfo, methods

if TYPE_CHECKING:
    from torch import nn

    from mmspec.vlm.architectures import Parts
    from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter


def _trained_methods() -> Iterator[MethodInfo]:
    """The methods that are a class with weights of its own: drafters, and heads that control their lengths."""
    for kind in ("drafter", "controller"):
        yield from (one for one in methods("vlm", kind) if {"saved", "published", "trained"} & one.facts.keys())


def trained_kinds() -> tuple[str, ...]:
    """The kinds that `mmspec train vlm-drafter` trains."""
    return tuple(kind for one in _trained_methods() for kind in one.facts.get("trained", ()))


def published_kinds() -> tuple[str, ...]:
    """The kinds whose published checkpoints are read; a drafter's name stands for its kind too."""
    found = [one for one in _trained_methods() if one.facts.get("published")]
    return tuple(sorted({name for one in found for name in (one.name, one.facts.get("saved", one.name))}))


def drafter_class(kind: str) -> Any:
    """The class of a kind, or of a method's name; None where there is none."""
    from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter

    for one in _trained_methods():
        if kind in (one.name, one.facts.get("saved"), *one.facts.get("trained", ())):
            return PretrainedDrafter.kinds.get(one.facts.get("saved"), one.load())
    return None


def drafter_classes() -> dict[str, Any]:
    """The classes by the kind that saved files name; imports their modules."""
    from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter

    for one in _trained_methods():
        one.load()
    return PretrainedDrafter.kinds


def untrained(kind: str, parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    """A new drafter for the parts of a target, see `new_drafter`."""
    made = drafter_class(kind)
    if made is None or not hasattr(made, "with_shape"):
        raise ValueError(f"kind: expected one of {', '.join(trained_kinds())}, got {kind!r}")
    return made.new(parts, {**made.variants.get(kind, {}), **sizes})


def new_drafter(kind: str, model: nn.Module, **sizes: Any) -> ShapedDrafter:
    """A drafter of `kind` for the target `model`, with random weights from torch's generator, on the target's device.

    Every kind takes the target's rotary base; the public code of EAGLE and FLASH trains with 10000 whatever the target has.
    Heads of their own (EAGLE-3, Medusa, Hydra) start from the target's.

    Args:
        kind: One of `trained_kinds`, or the name of another drafter.
        model: The target.
        sizes: Fields of the kind's config that replace those that follow from the target: its widths, heads, key-value
            heads, rotary base and norm epsilon, and biases of queries, keys and values where it has them.

    Raises:
        ValueError: The kind or a field is unknown, sizes do not fit together, or the target is not supported.
    """
    from mmspec.vlm.admission import take_apart

    parts = take_apart(model)
    return untrained(kind, parts, sizes).to(parts.device)
