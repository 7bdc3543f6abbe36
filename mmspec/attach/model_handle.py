"""The handle of transformers models, whose `generate` drafts and verifies."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from transformers import GenerationMixin

from mmspec.attach.handle import Handle
from mmspec.core.layers.compat import with_cache_name
from mmspec.core.round.rules.base import Rule
from mmspec.vlm.api import generate
from mmspec.vlm.auto import AUTO, automatic, copy_offer
from mmspec.vlm.conversation.past import past_of
from mmspec.vlm.drafters.from_text import rule_for
from mmspec.vlm.hf_model import class_generate, unwrapped
from mmspec.vlm.output import RowsFailed
from mmspec.vlm.streaming import DeferredStreamer

_ORDER = tuple(signature(GenerationMixin.generate).parameters)[1:]
_OURS = {"drafter", "rule", "seed", "capture", "return_dict", "on_stats", "strict"}  # no settings of transformers


class ModelHandle(Handle):
    """The handle in place of `model.generate`, with the same arguments and results; for `otherwise` see `enable`. A
    call with its own `custom_generate` goes to the original: mmspec and its drafters call `generate` that way."""

    def __init__(self, obj: Any, name: str, drafter: Any, rule: str | Rule, exact: bool, otherwise: str = "refuse"):
        super().__init__(obj, name, drafter, rule, exact)
        self.otherwise = otherwise

    @property
    def drafter(self) -> Any:
        """The drafter; for "auto", the model's current controller."""
        return automatic(self.obj) if self._is_auto else self._drafter

    @drafter.setter
    def drafter(self, drafter: Any) -> None:
        self._drafter = drafter

    @property
    def _is_auto(self) -> bool:
        return isinstance(self._drafter, str) and self._drafter == AUTO

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = with_cache_name(kwargs)
        if kwargs.get("custom_generate") is not None:
            return self.original(*args, **kwargs)
        inputs = {**dict(zip(_ORDER, args, strict=False)), **kwargs}
        # transformers cannot serve a request with settings of this package
        if self.otherwise == "plain" and not _OURS & set(inputs) and past_of(inputs) is None:
            return self._drafted_or_plain(inputs)
        try:
            return self._drafted(inputs)
        except ValueError as error:
            self._refuse(error)
            raise

    def _drafted(self, inputs: dict) -> Any:
        inputs = {"drafter": self.drafter, "rule": self.rule or "exact", **inputs}
        if self.exact and not rule_for(inputs["rule"], unwrapped(self.obj)).exact:
            raise ValueError(f"rule: expected an exact rule, got {inputs['rule']!r}; enable with mode='relaxed'")
        return generate(self.obj, on_stats=self._note, **inputs)

    def _drafted_or_plain(self, inputs: dict) -> Any:
        """Draft and verify; decode plainly if the request is refused before its first token."""
        streamer, drawn = inputs.get("streamer"), torch.get_rng_state()
        held = None if streamer is None else DeferredStreamer(streamer)
        try:
            return self._drafted(inputs if held is None else inputs | {"streamer": held})
        except ValueError as error:
            if isinstance(error, RowsFailed) or (held is not None and held.begun):
                self._refuse(error)
                raise
            refusal, held = error, None
        finally:
            if held is not None:
                held.close()
        warnings.warn(
            f"decoded plainly by transformers, as drafting cannot serve this request: {refusal}", stacklevel=3
        )
        torch.set_rng_state(drawn)  # the output equals that of a model that is not enabled
        try:
            result = class_generate(self.obj)(**inputs)
        except BaseException:
            if streamer is not None:
                streamer.end()  # its reader would otherwise wait forever
            raise
        self._total.decode_plainly(refusal)
        return result

    def _of_class(self) -> Callable:
        return class_generate(self.obj)

    def _copied(self, memo: dict) -> Handle:
        if self._is_auto and id(inner := unwrapped(self.obj)) in memo:
            copy_offer(inner, memo[id(inner)])
        return super()._copied(memo)
