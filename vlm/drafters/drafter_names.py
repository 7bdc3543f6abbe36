"""Kinds of trained drafters, as views of the registry of methods. The names are known without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mmspec.methods import MethodInfo, methods

if TYPE_CHECKING:
    from torch import nn

    from mmspec.vlm.architectures import Parts
    from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter


SMALL = "small"  # a small model is trained by the command for drafters too, but it is a model, no kind of drafter


def _trained_methods() -> Iterator[MethodInfo]:
    for kind in ("drafter", "controller", "rule"):
        yield from (info for info in methods("vlm", kind) if {"saved", "published", "trained"} & info.facts.keys())


def trained_kinds() -> tuple[str, ...]:
    return tuple(kind for info in _trained_methods() for kind in info.facts.get("trained", ()))


def published_kinds() -> tuple[str, ...]:
    """Return the kinds whose published checkpoints are read; the name of a drafter stands for its kind too."""
    infos = [info for info in _trained_methods() if info.facts.get("published")]
    return tuple(sorted({name for info in infos for name in (info.name, info.facts.get("saved", info.name))}))


def drafter_class(kind: str) -> Any:
    """Return the class of a kind or of a method's name; None for an unknown name."""
    from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter

    for info in _trained_methods():
        if kind in (info.name, info.facts.get("saved"), *info.facts.get("trained", ())):
            return PretrainedDrafter.kinds.get(info.facts.get("saved"), info.load())
    return None


def drafter_classes() -> dict[str, Any]:
    from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter

    for info in _trained_methods():
        info.load()
    return PretrainedDrafter.kinds


def untrained(kind: str, parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    cls = drafter_class(kind)
    if cls is None or not hasattr(cls, "with_shape"):
        raise ValueError(f"kind: expected one of {', '.join(trained_kinds())}, got {kind!r}")
    return cls.new(parts, {**cls.variants.get(kind, {}), **sizes})


def new_drafter(kind: str, model: nn.Module, **sizes: Any) -> ShapedDrafter:
    """Return a drafter on the target's device, with random weights from torch's generator; `sizes` replace config
    fields. Every kind takes the target's rotary base; the public code of EAGLE and FLASH always trains with 10000. Own
    heads (EAGLE-3, Medusa, Hydra) start from the target's."""
    from mmspec.vlm.admission import take_apart

    parts = take_apart(model)
    return untrained(kind, parts, sizes).to(parts.device)
