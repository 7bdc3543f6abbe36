"""The objective of a projector before a frozen text model: the answers' tokens, and the cross-entropy of a large
vocabulary in chunks, with no dense logits of all tokens in either direction."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionModel

from mmspec.zoo.architectures.llava import patch_features
from mmspec.zoo.training.vlm.conversations import ConversationBatch


def answer_states(
    projector: nn.Module, tower: CLIPVisionModel, language: Any, rows: ConversationBatch, picture: int
) -> tuple[Tensor, Tensor]:
    """The states that the text model predicts supervised tokens from.

    Args:
        projector: From patch features to the text model's rows.
        tower: The frozen vision tower.
        language: The frozen text model with its head.
        rows: Conversations with pictures.
        picture: The id that stands for a row of a picture.

    Returns:
        States float [T, width] before every supervised token, and those tokens int64 [T].
    """
    embeds = language.get_input_embeddings()(rows.ids)
    with torch.no_grad():
        seen = patch_features(tower, rows.pixels)
    features = projector(seen).to(embeds.dtype)
    embeds = embeds.masked_scatter((rows.ids == picture)[..., None], features.flatten(0, 1))
    hidden = language.model(
        inputs_embeds=embeds, attention_mask=rows.visible, position_ids=rows.positions, use_cache=False
    ).last_hidden_state
    wanted = rows.supervised[:, 1:]
    return hidden[:, :-1][wanted], rows.ids[:, 1:][wanted]


class _ChunkedHeadLoss(torch.autograd.Function):
    """Computes the gradient of the states in the forward pass, chunk by chunk; the head is frozen."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, targets: Tensor, shares: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        count = len(targets)
        gradient, loss = torch.zeros_like(states), torch.zeros((), device=states.device)
        best = torch.empty_like(targets)
        for first in range(0, count, chunk):
            # every chunk has the same shape: oneDNN keeps a plan for each shape
            rows = states[first : first + chunk]
            size = len(rows)
            logits = (F.pad(rows, (0, 0, 0, chunk - size)) @ head.T)[:size].float()
            wanted = targets[first : first + size]
            logs = logits.log_softmax(-1)
            share = shares[first : first + size, None]
            loss -= (logs.gather(1, wanted[:, None]) * share).sum()
            best[first : first + size] = logs.argmax(-1)
            slope = logs.exp_()
            slope.scatter_add_(1, wanted[:, None], -torch.ones_like(wanted, dtype=slope.dtype)[:, None])
            slope = F.pad(slope.mul_(share).to(head.dtype), (0, 0, 0, chunk - size)) @ head
            gradient[first : first + size] = slope[:size].to(states.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(best)
        return loss, best

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _best: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * slope.to(gradient.dtype), None, None, None, None


def head_loss(
    states: Tensor, head: Tensor, targets: Tensor, weights: Tensor | None = None, chunk: int = 128
) -> tuple[Tensor, Tensor]:
    """The weighted mean of the cross-entropy of tokens under a frozen head.

    Args:
        states: Hidden states, float [T, D].
        head: Weights of the head, float [V, D] of the same dtype.
        targets: Tokens, int64 [T].
        weights: Of the tokens, float [T]; all alike without.
        chunk: Tokens whose logits lie in memory at once.

    Returns:
        The loss, float32 [], and the most probable token of every state, int64 [T].
    """
    weights = torch.ones(len(targets), device=states.device) if weights is None else weights
    return _ChunkedHeadLoss.apply(states, head, targets, weights / weights.sum(), chunk)
