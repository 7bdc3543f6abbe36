"""The transformers side of a call: the model inside adapters and `torch.compile`, the `generate` of its class, and the
arguments that a call does not pass on to a `custom_generate` callable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature, signature, unwrap
from types import FrameType

from torch import nn
from transformers import GenerationMixin


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the transformers model inside an adapter (with `get_base_model`, as in peft) or a compiled module.
    Adapters that change layers stay active in it; a learned prompt belongs to the wrapper and would be lost, so it is
    refused."""
    for inner in _inwards(model):
        configs = getattr(inner, "peft_config", None)
        if isinstance(configs, dict) and any(getattr(c, "is_prompt_learning", False) for c in configs.values()):
            raise ValueError(
                "model: expected an adapter that changes layers, such as LoRA, got an adapter that learns a "
                "prompt, which drafted decoding would lose; decode it with model.generate"
            )
    return inner


def class_generate(model: nn.Module) -> Callable:
    """Return the `generate` that the class of a model defines, bound to the model. That of a wrapper comes first, as it
    may do more than call the model inside. An attribute of the object is ignored: it may be a handle of `mmspec.enable`
    or the `custom_generate` of a checkpoint, and both call this package, which decodes through no other `generate`."""
    for inner in _inwards(model):
        if callable(method := getattr(type(inner), "generate", None)):
            return method.__get__(inner)
    raise ValueError(f"model: expected a transformers model that generates text, got {type(model).__name__}")


def drafted_generate(model: nn.Module) -> Callable:
    """Return `class_generate` of a model whose adapter `unwrapped` supports."""
    unwrapped(model)
    return class_generate(model)


def _inwards(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model, then the model inside each wrapper, down to the transformers model."""
    while True:
        yield model
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return


def uncompiled(module: nn.Module | None) -> nn.Module | None:
    """Return the module inside `torch.compile`, as passes over drafts have many shapes and would recompile for each."""
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
        module = inner
    return module


def check_layers(decoder: nn.Module, head: nn.Module) -> None:
    """Check that passes use a cache and that a token's result depends on no other token, as in dynamic quantisation."""
    for part in (*decoder.modules(), *head.modules()):
        if part.training and getattr(part, "gradient_checkpointing", False):
            raise ValueError(
                "model: expected a model in eval mode, got training with gradient checkpointing, which keeps no "
                "cache; call model.eval() or model.gradient_checkpointing_disable() first"
            )
        if type(part).__module__.startswith("torch.ao.nn.quantized.dynamic"):
            raise ValueError(
                "model: expected layers that round each token by itself, got dynamic quantisation of torch.ao, "
                "which scales all tokens of a pass together; quantise the weights alone, as torchao's "
                "Int8WeightOnlyConfig does, or decode it with model.generate"
            )


_GENERATE = unwrap(GenerationMixin.generate).__code__
_SORTING = GenerationMixin._extract_generation_mode_kwargs.__code__


class TokenizerSignature(Signature):
    """The signature of a `custom_generate` callable with a `tokenizer`. `generate` removes the tokenizer from its
    arguments before it reads the callable's signature, so stop strings and token healing would have none; reading this
    signature puts it back."""

    @classmethod
    def of(cls, function: Callable) -> TokenizerSignature:
        own = signature(function)
        return cls(list(own.parameters.values()), return_annotation=own.return_annotation)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        frame = sys._getframe(1)
        if frame.f_code is _SORTING:
            variables = frame.f_locals
            tokenizer = variables["generation_mode_kwargs"].get("tokenizer")
            if tokenizer is not None:
                variables["kwargs"]["tokenizer"] = tokenizer
        return super().parameters


def setting_of_call(model: nn.Module, inputs: Mapping[str, object], name: str) -> object:
    """Return the generation setting `name` of a call, in the order of precedence of `generate`."""
    if name in inputs:
        return inputs[name]
    setting = getattr(inputs.get("generation_config"), name, None)
    default = getattr(getattr(model, "generation_config", None), name, None)
    return default if setting is None else setting


def _call() -> FrameType | None:
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    return frame


def streamer_of_call() -> object | None:
    """Return the `streamer` of the `transformers.generate` call that runs this code, read from its frame; None without
    any. `generate` puts the prompt on it but does not pass it on, so that an iterating reader would wait forever."""
    frame = _call()
    return None if frame is None else frame.f_locals.get("streamer")


def inputs_of_call() -> dict | None:
    """Return the inputs of that `transformers.generate` call, before the vision tower encoded the pictures."""
    frame = _call()
    return None if frame is None else {"inputs": frame.f_locals.get("inputs"), **frame.f_locals.get("kwargs", {})}
