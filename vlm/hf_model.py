"""The transformers side of a call: the model behind adapters and `torch.compile`, the `generate` of its class, and what that
call knows but does not pass on to a `custom_generate` callable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature, signature
from types import FrameType

from torch import nn
from transformers import GenerationMixin


def unwrapped(model: nn.Module) -> nn.Module:
    """The transformers model inside an adapter (whatever has `get_base_model`, as peft's models do) or a compiled module.

    Adapters that change layers stay at work in it.   Raises ValueError for those that put a learned prompt before the
    request's own: that prompt is the wrapper's and would be lost.
    """
    for inner in _inwards(model):
        configs = getattr(inner, "peft_config", None)
        if isinstance(configs, dict) and any(getattr(one, "is_prompt_learning", False) for one in configs.values()):
            raise ValueError("model: expected an adapter that changes layers, such as LoRA, got one that learns a prompt, "
                             "which drafted decoding would lose; decode it with model.generate")  # fmt: skip
    return inner


def class_generate(model: nn.Module) -> Callable:
    """The `generate` that the class of a model defines, bound to the model.

    An attribute of the object itself is passed over: it may be a handle of `mmspec.enable`, or the `custom_generate` of a
    checkpoint, and both call this package. The package decodes through no other `generate`.

    Args:
        model: A transformers model or a wrapper. A wrapper whose class has its own `generate` may have work to do around
            it, so that method is taken; otherwise the method of the model inside is taken.

    Returns:
        The bound method.

    Raises:
        ValueError: If no class has such a method.
    """
    for inner in _inwards(model):
        if callable(method := getattr(type(inner), "generate", None)):
            return method.__get__(inner)
    raise ValueError(f"model: expected a transformers model that generates text, got {type(model).__name__}")


def drafted_generate(model: nn.Module) -> Callable:
    """`class_generate` for a drafted request.

    Raises:
        ValueError: As `unwrapped` does.
    """
    unwrapped(model)
    return class_generate(model)


def _inwards(model: nn.Module) -> Iterator[nn.Module]:
    """The model as it is given, then whatever each wrapper holds, up to the transformers model."""
    while True:
        yield model
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return


def uncompiled(module: nn.Module | None) -> nn.Module | None:
    """The module behind `torch.compile`; any other as it is.

    Passes over drafts have many shapes, for each of which a compiled module would be compiled again.
    """
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
        module = inner
    return module


def check_layers(decoder: nn.Module, head: nn.Module) -> None:
    """Checks that passes of a decoder keep a cache, and that a token's result does not depend on the others in its pass.

    Raises:
        ValueError: for gradient checkpointing in training mode, and for layers that are quantised dynamically.
    """
    for part in (*decoder.modules(), *head.modules()):
        if part.training and getattr(part, "gradient_checkpointing", False):
            raise ValueError("model: expected one in eval mode or without gradient checkpointing, which keeps no cache while "
                             "it trains; call model.eval() or model.gradient_checkpointing_disable() first")  # fmt: skip
        if type(part).__module__.startswith("torch.ao.nn.quantized.dynamic"):
            raise ValueError("model: expected layers that round each token by itself, got dynamic quantisation of torch.ao, "
                             "which scales all tokens of a pass together; quantise the weights alone, as torchao's "
                             "Int8WeightOnlyConfig does, or decode it with model.generate")  # fmt: skip


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
