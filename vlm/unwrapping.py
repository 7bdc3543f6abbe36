"""The model behind what libraries wrap around it, and what they may not have done to its layers."""

from __future__ import annotations

from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """The transformers model inside an adapter (whatever has `get_base_model`, as peft's models do) or a compiled module.

    Adapters that change layers stay at work in it.   Raises ValueError for those that put a learned prompt before the
    request's own: that prompt is the wrapper's and would be lost.
    """
    while True:
        configs = getattr(model, "peft_config", None)
        if isinstance(configs, dict) and any(getattr(one, "is_prompt_learning", False) for one in configs.values()):
            raise ValueError("model: expected an adapter that changes layers, such as LoRA, got one that learns a prompt, "
                             "which drafted decoding would lose; decode it with model.generate")  # fmt: skip
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def uncompiled(module: nn.Module | None) -> nn.Module | None:
    """The module behind `torch.compile`; any other as it is.

    Passes over drafts have many shapes, for each of which a compiled module would be compiled again.
    """
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
        module = inner
    return module


def called(model: nn.Module) -> nn.Module:
    """Whose `generate` a request goes through: the wrapper's own, which may have work to do around it, where it has one."""
    inner = unwrapped(model)
    return model if hasattr(model, "generate") else inner


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
