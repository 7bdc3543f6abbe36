"""Drafters by text: "lookup:longest=3", "eagle:chain=4@runs/my-drafter"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from mmspec.core.fingerprint import made_once
from mmspec.io.pretrained import folder_of
from mmspec.methods import MethodCall, names, parse
from mmspec.methods.text import split
from mmspec.vlm.auto import offered_drafters
from mmspec.vlm.hf_model import unwrapped


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """What a drafter of a model is made of.

    Attributes:
        model: The target.
        call: The text, as it was read.
    """

    model: nn.Module
    call: MethodCall

    def part(self, name: str, source: str | None = None) -> Any:
        """The weights that the text names behind @, or those of the drafters that are offered for the model.

        Raises:
            ValueError: There are none, or they do not fit the model.
        """
        weights = source or self.call.weights
        if weights is None:
            return self._offered(name)
        if name == "model":
            from transformers import AutoModelForCausalLM

            from mmspec.io.checkpoints import load_model

            folder = folder_of(weights)
            return load_model(AutoModelForCausalLM, str(folder), local=True, dtype=self.model.dtype).to(
                self.model.device
            )
        from mmspec.vlm.drafters.checkpoints import load_drafter
        from mmspec.vlm.drafters.kinds import published_kinds

        kind = self.call.method.name
        return load_drafter(weights, target=self.model, kind=kind if kind in published_kinds() else None)

    def _offered(self, name: str) -> Any:
        wanted = self.call.method.load() if name == "weights" else None
        for one in offered_drafters(self.model):
            inner = getattr(one, "drafter", one)
            if isinstance(inner, wanted) if isinstance(wanted, type) else wanted and hasattr(inner, "with_shape"):
                return inner
        form = f"{self.call.method.name}@FOLDER"
        raise ValueError(
            f"expected its weights behind @, as in {form!r}, got none; name a folder, a hub id or zoo:NAME"
        )


def is_drafter_text(text: str) -> bool:
    """Whether a text begins with the name of a drafter."""
    try:
        return split(text)[0] in names("vlm", "drafter")
    except ValueError:
        return False


def drafter_from_text(text: str, model: nn.Module) -> Any:
    """The drafter that a text asks for, or that lies in the folder or hub repository which it names; None for "none".

    Drafters with weights are made once for a model: a request with the same text gets the same object.

    Raises:
        ValueError: A name, a setting or a value is unknown, or the weights are not at hand or do not fit the model.
    """
    if not is_drafter_text(text) and ("/" in text or Path(text).exists()):
        from mmspec.vlm.drafters.checkpoints import load_drafter

        return _once(model, text, lambda: load_drafter(text, target=model))
    call = parse(text, "vlm", "drafter")
    if not call.method.needs:
        return call.make(DrafterParts(model, call))
    return _once(model, str(call), lambda: call.make(DrafterParts(model, call)))


def _once(model: nn.Module, text: str, make: Callable[[], Any]) -> Any:
    inner = unwrapped(model)
    return made_once(inner, ("drafter", text), make, inner)
