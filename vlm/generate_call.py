"""The context of a `transformers.generate` call: what it knows but does not pass on to a `custom_generate` callable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from types import FrameType

from torch import nn
from transformers import GenerationMixin

_GENERATE = getattr(GenerationMixin.generate, "__wrapped__", GenerationMixin.generate).__code__
_SORTING = GenerationMixin._extract_generation_mode_kwargs.__code__


class TokenizerSignature(Signature):
    """The signature of a `custom_generate` callable that takes a `tokenizer`: with it, the call keeps its tokenizer.

    `generate` sorts its arguments before it does anything else. It takes the tokenizer out for its own decoding methods,
    then reads the callable's signature and passes on the arguments that are still there. Stop strings and token healing
    would find no tokenizer afterwards. Where this signature is read from that place, it puts the tokenizer back.
    """

    @classmethod
    def of(cls, function: Callable) -> TokenizerSignature:
        """The signature of `function`, which has a parameter `tokenizer`."""
        own = signature(function)
        return cls(list(own.parameters.values()), return_annotation=own.return_annotation)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        frame = sys._getframe(1)
        if frame.f_code is _SORTING:
            found = frame.f_locals
            tokenizer = found["generation_mode_kwargs"].get("tokenizer")
            if tokenizer is not None:
                found["kwargs"]["tokenizer"] = tokenizer
        return super().parameters


def setting_of_call(model: nn.Module, inputs: Mapping[str, object], name: str) -> object:
    """The generation setting `name` of a call with the arguments `inputs`, from the place that `generate` takes it from.

    Args:
        model: the transformers model, without wrappers.
        inputs: the arguments of its `generate`.
        name: a field of `GenerationConfig`.
    """
    if name in inputs:
        return inputs[name]
    given = getattr(inputs.get("generation_config"), name, None)
    default = getattr(getattr(model, "generation_config", None), name, None)
    return default if given is None else given


def _call() -> FrameType | None:
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    return frame


def streamer_of_call() -> object | None:
    """The `streamer` given to the `transformers.generate` call this code runs under, if there is one.

    `generate` hands a callable every argument but the streamer, after having put the prompt on it; an iterating reader
    would then wait for ever. The call's own frame still holds it.
    """
    frame = _call()
    return None if frame is None else frame.f_locals.get("streamer")


def inputs_of_call() -> dict | None:
    """The inputs given to that call, before the target's vision tower turned pictures into its own features."""
    frame = _call()
    return None if frame is None else {"inputs": frame.f_locals.get("inputs"), **frame.f_locals.get("kwargs", {})}
