"""The admission, the prompt and the scores of a second transformers model that drafts for a target."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.hf_model import unwrapped
from mmspec.vlm.prefill import prepare_inputs
from mmspec.vlm.target import TextTarget


def attention_parts(model: nn.Module) -> Parts:
    """Return the parts of a draft model; layers with recurrent states are refused, since they cannot drop tokens."""
    parts = take_apart(unwrapped(model))
    if parts.plan.stateful:
        raise ValueError(
            f"model: expected a draft model whose cache can drop rejected tokens, got the recurrent "
            f"{type(parts.model).__name__}; use a model with attention layers alone"
        )
    return parts


def check_fits(small: Parts, target: TextTarget) -> None:
    """Refuse a draft model with another vocabulary, class or device than the target."""
    large, device = target.parts, small.device
    if small.vocab_size > large.vocab_size:
        raise ValueError(
            f"model: expected the target's vocabulary of {large.vocab_size}, got {small.vocab_size}; "
            "draft with a model of the same tokenizer"
        )
    if device != target.device:
        raise ValueError(f"model: expected it on {target.device} with the target, got {device}; move it there")
    alike = type(small.model) is type(large.model) and small.placeholders == large.placeholders
    if small.placeholders and not alike:
        raise ValueError(
            f"model: expected a {type(large.model).__name__} with the target's placeholder ids or a "
            f"text-only model, got a {type(small.model).__name__}; both read the same prompt"
        )


def prompt_for(parts: Parts, target: TextTarget) -> tuple[Tensor, dict]:
    """Return the prompt of a request for a draft model: ids [B, P], and the other arguments of its first pass."""
    if parts.placeholders:
        if target.inputs is None:
            raise ValueError(
                "model: expected the pictures of the prompt for a vision-language drafter, got none; call "
                "mmspec.generate or pass mmspec.decode to model.generate itself"
            )
        return prepare_inputs(parts.model, target.inputs)
    rows = [row or [0] for row in text_rows(target, parts.vocab_size)]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=target.device)
    slot = torch.arange(longest, device=target.device)
    start = torch.tensor([longest - len(row) for row in rows], device=target.device)[:, None]
    mask = (slot >= start).long() if min(map(len, rows)) < longest else None
    return ids, {"attention_mask": mask, "position_ids": (slot - start).clamp(min=0)}


def text_rows(target: TextTarget, vocab_size: int) -> list[list[int]]:
    """Return the prompt of every row as ids below `vocab_size`, without padding and visual placeholders."""
    is_text = target.prompt < vocab_size
    for placeholder in target.parts.placeholders:
        is_text &= target.prompt != placeholder
    if target.padding is not None:
        is_text &= ~target.padding
    return [row[keep].tolist() for row, keep in zip(target.prompt, is_text, strict=True)]


def mask_placeholders(scores: Tensor, target: TextTarget) -> Tensor:
    """Mask the visual placeholders in scores [..., V], in place."""
    for placeholder in target.parts.placeholders:
        if placeholder < scores.shape[-1]:
            scores[..., placeholder] = float("-inf")
    return scores
