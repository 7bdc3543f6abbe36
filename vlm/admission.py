"""Which requests a model may be asked: those whose drafts can be verified over their whole length."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.vlm.architectures import Parts
from mmspec.vlm.proof import prove_bits, prove_prompt, prove_reach
from mmspec.vlm.target import TextTarget

_TEXT = {"input_ids", "inputs", "attention_mask", "position_ids"}


def admit(target: TextTarget) -> None:
    """Raises ValueError, with what to do, for a request that plain steps and drafted passes could answer differently."""
    parts, prompt, most = target.parts, target.prompt.shape[1], target.most
    name = type(parts.model).__name__
    _check_widths(parts, prompt, most)
    if target.rope is not None:
        _check_switch(parts, target.rope.switch, prompt, most)
    if target.strict:
        prove_bits(parts)
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


def _check_widths(parts: Parts, prompt: int, most: int | None) -> None:
    """Refuses a request in which a class from elsewhere would need its windows, or in which slots would scale queries."""
    limits = [] if parts.own else [(layer.width, layer.field) for layer in parts.plan.narrow]
    if parts.plan.temperature is not None:
        limits.append((parts.plan.temperature, "floor_scale"))
    for tokens, field in limits:
        if most is None or prompt + most > tokens:
            asked = "no limit" if most is None else f"{prompt} and {most}"
            raise ValueError(
                f"max_new_tokens: expected prompt and answer to fit the {field} of {tokens} tokens of "
                f"{type(parts.model).__name__}, got {asked}; shorten them or decode with model.generate"
            )


def _check_switch(parts: Parts, switch: int, prompt: int, most: int | None) -> None:
    """Refuses a request that crosses the length at which the class reads its whole prompt again with other frequencies."""
    crosses = prompt <= switch and (most is None or prompt + most - 1 > switch)
    if crosses and _reads_again(parts, switch):
        raise ValueError(
            f"max_new_tokens: expected prompt and answer on one side of {switch} tokens, got {prompt} and {most}; "
            f"{type(parts.model).__name__} reads everything again there, so shorten them or decode with model.generate"
        )


def _reads_again(parts: Parts, length: int) -> bool:
    """Whether the class drops its cache for the pass behind `length` tokens."""
    model, cache = parts.model, SlotCache(parts.plan, 1)
    cache.lengths = [length]
    ids = torch.zeros(1, length + 1, dtype=torch.long, device=parts.device)
    settings = dict(past_key_values=cache, attention_mask=torch.ones_like(ids), next_sequence_length=1, use_cache=True)
    return model.prepare_inputs_for_generation(ids, **settings).get("past_key_values") is not cache
