"""Drafters by their text form: "lookup:longest=3", "eagle:chain=4@runs/my-drafter"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from mmspec.core.layers.fingerprint import made_once
from mmspec.core.round.rules.base import Rule
from mmspec.core.round.rules.by_name import resolve
from mmspec.methods import MethodCall, names, parse
from mmspec.methods.text import split
from mmspec.vlm.auto import offered_drafters
from mmspec.vlm.hf_model import unwrapped


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """The target and the parsed text that a drafter is built from."""

    model: nn.Module
    call: MethodCall

    def part(self, name: str, source: str | None = None) -> Any:
        """Return the weights behind @ in the text, or those of the drafters that are offered for the model: "weights"
        of a trained drafter, a smaller "model". `source` is a folder or a hub id in place of the text's weights."""
        weights = source or self.call.weights
        if weights is None:
            return self._offered(name)
        if name == "model":
            from mmspec.vlm.drafters.small_model import load_small_model

            return load_small_model(weights, self.model)
        from mmspec.vlm.drafters.checkpoints import load_drafter
        from mmspec.vlm.drafters.drafter_names import published_kinds

        # other weights are those of a part of the drafter, such as a control of its length
        kind = self.call.method.name if weights == self.call.weights else None
        return load_drafter(weights, target=self.model, kind=kind if kind in published_kinds() else None)

    def _offered(self, name: str) -> Any:
        wanted = self.call.method.load() if name == "weights" else None
        for drafter in () if self.call.method.kind == "rule" else offered_drafters(self.model):
            inner = getattr(drafter, "drafter", drafter)
            if isinstance(inner, wanted) if isinstance(wanted, type) else wanted and hasattr(inner, "with_shape"):
                return inner
        form = f"{self.call.method.name}@FOLDER"
        raise ValueError(
            f"expected its weights behind @, as in {form!r}, got none; name a folder, a hub id or zoo:NAME"
        )


def is_drafter_text(text: str) -> bool:
    try:
        return split(text)[0] in names("vlm", "drafter")
    except ValueError:
        return False


def drafter_from_text(text: str, model: nn.Module) -> Any:
    """Return the drafter that a text names, or that lies in the named folder or hub repository; None for "none". A
    drafter with weights is built once per model: requests with the same text share the object."""
    if not is_drafter_text(text) and ("/" in text or Path(text).exists()):
        from mmspec.vlm.drafters.checkpoints import load_drafter

        return _once(model, text, lambda: load_drafter(text, target=model))
    call = parse(text, "vlm", "drafter")
    if not call.method.needs:
        return call.make(DrafterParts(model, call))
    return _once(model, str(call), lambda: call.make(DrafterParts(model, call)))


def rule_for(rule: str | Rule, model: nn.Module, *, greedy: bool = False) -> Rule:
    """Return the rule, such as "judge:threshold=0.6@FOLDER", see `resolve`; with weights, it is built once per model."""
    if isinstance(rule, str) and (call := parse(rule, None, "rule")).method.needs:
        return _once(model, f"rule {call}", lambda: call.make(DrafterParts(model, call)))
    return resolve(rule, greedy=greedy)


def _once(model: nn.Module, text: str, make: Callable[[], Any]) -> Any:
    inner = unwrapped(model)
    return made_once(inner, ("drafter", text), make, inner)
