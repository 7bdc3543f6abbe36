"""Which requests a model may be asked: those whose drafts can be verified over their whole length."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.vlm.architectures import Parts
from mmspec.vlm.proof import prove_prompt, prove_reach
from mmspec.vlm.target import TextTarget

_TEXT = {"input_ids", "inputs", "attention_mask", "position_ids"}


def admit(target: TextTarget) -> None:
    """Raises ValueError, with what to do, for a request that plain steps and drafted passes could answer differently."""
    parts, prompt, most = target.parts, target.prompt.shape[1], target.most
    name = type(parts.model).__name__
    if parts.window is not None:
        parts.window.check(prompt, most, name)
    if target.rope is not None:
        _check_switch(parts, target.rope.switch, prompt, most)
    if parts.trusted:
        return
    if most is None:
        raise ValueError(
            f"max_new_tokens: expected a limit, got none; {name} has to show that it sees the whole length"
        )
    known = target.model_kwargs if target.inputs is None else target.inputs
    beyond = [key for key, value in known.items() if isinstance(value, Tensor) and key not in _TEXT]
    if beyond and target.inputs is None:
        raise ValueError(f"model: expected {name} to be called through its generate, got a bare call with "
                         f"{', '.join(beyond)}; it has to prove itself on this prompt")  # fmt: skip
    if beyond:
        prove_prompt(parts, target.inputs)
    prove_reach(parts, prompt + most)


def _check_switch(parts: Parts, switch: int, prompt: int, most: int | None) -> None:
    """Refuses a request that crosses the length at which the class reads its whole prompt again with other frequencies."""
    crosses = prompt <= switch and (most is None or prompt + most - 1 > switch)
    if crosses and _reads_again(parts.model, parts.layers, switch):
        raise ValueError(
            f"max_new_tokens: expected prompt and answer on one side of {switch} tokens, got {prompt} and {most}; "
            f"{type(parts.model).__name__} reads everything again there, so shorten them or decode with model.generate"
        )


def _reads_again(model: nn.Module, layers: int, length: int) -> bool:
    """Whether the class drops its cache for the pass behind `length` tokens."""
    cache = SlotCache(layers, 1)
    cache.lengths = [length]
    ids = torch.zeros(1, length + 1, dtype=torch.long, device=model.device)
    settings = dict(past_key_values=cache, attention_mask=torch.ones_like(ids), next_sequence_length=1, use_cache=True)
    return model.prepare_inputs_for_generation(ids, **settings).get("past_key_values") is not cache
