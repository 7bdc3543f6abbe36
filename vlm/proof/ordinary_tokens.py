"""Ordinary tokens of a model's vocabulary, for trials."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.vlm.architectures import Parts


def ordinary(parts: Parts, batch: int, length: int, seed: int = 0) -> Tensor:
    """Ids of ordinary tokens, int64 [B, n]: none that a config names, such as end, padding or a picture's place."""
    model = parts.model
    named = _numbers(model.config.to_dict()) | _numbers(model.generation_config.to_dict())
    named = {value for value in named if 0 <= value < parts.vocab_size}
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(parts.vocab_size, generator=rng)[: batch * length + len(named) + 1].tolist()
    drawn = [one for one in drawn if one not in named] or [0]
    while len(drawn) < batch * length:
        drawn += drawn
    return torch.tensor(drawn[: batch * length], device=parts.device).view(batch, length)


def _numbers(config: object) -> set[int]:
    if isinstance(config, dict):
        return {
            n
            for name, value in config.items()
            for n in _numbers(value)
            if isinstance(value, dict) or "token" in str(name)
        }
    if isinstance(config, list | tuple):
        return {n for value in config for n in _numbers(value)}
    return {config} if isinstance(config, int) and not isinstance(config, bool) else set()


def padding_id(model: nn.Module) -> int:
    """The id that fills padding."""
    pad = model.generation_config.pad_token_id
    return 0 if pad is None else int(pad)
