"""Models of transformers: their `generate` drafts and verifies."""

from __future__ import annotations

from inspect import signature
from typing import Any

from transformers import GenerationMixin

from mmspec.attach.handle import Handle
from mmspec.core.rules.resolve import resolve
from mmspec.vlm.api import generate

_ORDER = tuple(signature(GenerationMixin.generate).parameters)[1:]


class OnModel(Handle):
    """In front of `model.generate`, whose arguments and results stay what they are.

    A call that brings its own `custom_generate` goes through untouched: that is how ours, and those of drafters, come back.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("custom_generate") is not None:
            return self.original(*args, **kwargs)
        inputs = {
            "drafter": self.drafter,
            "rule": self.rule or "exact",
            **dict(zip(_ORDER, args, strict=False)),
            **kwargs,
        }
        try:
            if self.exact and not resolve(inputs["rule"], greedy=False).exact:
                raise ValueError(f"rule: expected an exact one, got {inputs['rule']!r}; enable with mode='relaxed'")
            return generate(self.obj, on_stats=self._note, **inputs)
        except ValueError as error:
            self._refuse(error)
            raise
