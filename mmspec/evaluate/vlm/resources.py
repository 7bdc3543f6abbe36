"""A model, its processor, and everything that can draft for it, each loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmspec import zoo
from mmspec.evaluate.engine.resources import Resources
from mmspec.evaluate.vlm.drafters import DRAFTERS, short_name, target_of, unknown_drafter
from mmspec.vlm import load_drafter


@dataclass(slots=True)
class VlmResources(Resources):
    """name: what tables call the model.   zoo: its name in the zoo, whose drafters fit, "" for others."""

    model: Any
    processor: Any
    name: str
    zoo: str = "vlm"

    @property
    def is_zoo(self) -> bool:
        """Whether it is the zoo's VLM, which most of the zoo's drafters are for."""
        return self.zoo == "vlm"

    def zoo_part(self, name: str) -> Any:
        """A model of the zoo that belongs to this one.   Raises ValueError where it belongs to another."""
        if target_of(name) != self.zoo:
            raise ValueError(
                f"expected the zoo's model, which {name!r} was trained for, got {self.name}, "
                "use --drafter lookup or recycling"
            )
        return self.once(name, lambda: zoo.load(name))

    def drafter(self, name: str) -> Any:
        """The drafter called `name` in DRAFTERS, or the one saved in the folder `name`; None for "none"."""
        short = short_name(name)
        if short in DRAFTERS:
            return DRAFTERS[short].make(self)
        if Path(name).is_dir():
            return self.once(name, lambda: load_drafter(name, target=self.model))
        raise ValueError(unknown_drafter(name))

    def variant(self, name: str, change: Callable[[Any], Any]) -> Any:
        """The zoo's EAGLE after `change`, made once and kept as `name`."""
        return self.once(name, lambda: change(self.zoo_part("vlm/eagle")))


def zoo_resources(name: str = "vlm", dtype: str = "float32") -> VlmResources:
    """The zoo's VLM of this name."""
    model, processor = zoo.load(name)
    size, suffix = sum(p.numel() for p in model.parameters()), "" if dtype == "float32" else f", {dtype}"
    return VlmResources(model.to(getattr(torch, dtype)), processor, f"zoo {name}, {size:,} parameters{suffix}", name)


def published_resources(spec: str, local: bool) -> VlmResources:
    """The model of transformers in a folder, or the one a hub id names. local: nothing is fetched.

    Raises ValueError and whatever its readers raise where there is none that takes pictures and text.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from mmspec.core.checkpoints import load_model, load_part

    processor = load_part(AutoProcessor, spec, local=local)
    model = load_model(AutoModelForImageTextToText, spec, local=local)
    size = sum(p.numel() for p in model.parameters())
    return VlmResources(model, processor, f"{spec}, {size:,} parameters", zoo="")
