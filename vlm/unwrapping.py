"""The model behind what other libraries wrap around it."""

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


def called(model: nn.Module) -> nn.Module:
    """Whose `generate` a request goes through: the wrapper's own, which may have work to do around it, where it has one."""
    inner = unwrapped(model)
    return model if hasattr(model, "generate") else inner
