"""Initialisation and objective of the window projector of `vlm/smol`.

The initialisation is a ridge regression from patches to embeddings of their words. The objective is the cross-entropy
of the answers' tokens over a large vocabulary. It is computed in chunks, without dense logits of all tokens in either
direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionModel

from mmspec.zoo.architectures.llava import PATCH_HEADS, patch_features
from mmspec.zoo.architectures.smol import WindowProjector
from mmspec.zoo.training.vlm.conversations import ConversationBatch
from mmspec.zoo.training.vlm.vision_tower import IGNORE, point_along
from mmspec.zoo.world.language import POSITIONS
from mmspec.zoo.world.scene import Scene

WindowWords = tuple[str, str, str, str]


def window_words(scene: Scene) -> list[WindowWords]:
    """Return the words of the four rows of every grid cell: place, size and texture, color, kind. For an empty cell,
    they are the place, the texture and the tone of the background, and "background"."""
    by_cell = {thing.cell: thing for thing in scene.things}
    words = []
    for cell, (place, *_) in enumerate(POSITIONS):
        if (thing := by_cell.get(cell)) is None:
            words.append((place, scene.background.texture, scene.background.tone, "background"))
        else:
            look = thing.size if thing.is_digit else f"{thing.size} {thing.texture}"
            words.append((place, look, thing.color, thing.kind))
    return words


def ridge(inputs: Tensor, targets: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return weight float [E, D] and bias float [E] of least squared error from inputs [N, D] to targets [N, E]. The
    penalty of the squared weights is in units of the inputs' mean variance times N; the bias has none."""
    inputs, targets = inputs.double(), targets.double()
    center, mean = inputs.mean(0), targets.mean(0)
    centred = inputs - center
    gram = centred.T @ centred
    gram.diagonal().add_(penalty * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, centred.T @ (targets - mean)).T
    return weight.float(), (mean - weight @ center).float()


@torch.no_grad()
def reading_heads(features: Tensor, labels: Mapping[str, Tensor], penalty: float = 1e-4) -> nn.ModuleDict:
    """Return linear heads by `ridge` from patch features float [N, vision] to the class of every patch by property,
    int64 [N], `IGNORE` for none."""
    heads = nn.ModuleDict()
    for name, label in labels.items():
        head = heads[name] = nn.Linear(features.shape[1], len(PATCH_HEADS[name][0]))
        here = label != IGNORE
        weight, bias = ridge(features[here], F.one_hot(label[here], head.out_features).float(), penalty)
        head.weight.copy_(weight)
        head.bias.copy_(bias)
    return heads


@torch.no_grad()
def start_from_words(
    projector: WindowProjector, heads: nn.ModuleDict, features: Tensor, targets: Tensor, penalty: float = 1e-3
) -> float:
    """Initialise a projector in place; return the share of the targets' variance that it explains. The first layer
    mixes reading heads, every property with the same variance. The second is the ridge map from its windows of features
    [N, patches, vision] to embeddings [N, windows, rows * text]."""
    point_along(projector.linear_1, heads, features.flatten(0, 1))
    inputs = projector.windows(features).flatten(0, 1)
    wanted = targets.flatten(0, 1)
    weight, bias = ridge(inputs, wanted, penalty)
    projector.linear_2.weight.copy_(weight)
    projector.linear_2.bias.copy_(bias)
    rest = (projector.linear_2(inputs) - wanted).square().sum()
    return float(1 - rest / (wanted - wanted.mean(0)).square().sum())


def answer_states(
    projector: nn.Module, tower: CLIPVisionModel, language: Any, rows: ConversationBatch, picture: int
) -> tuple[Tensor, Tensor]:
    """Return states float [T, width] before every supervised token, and those tokens int64 [T]; `picture` is the
    placeholder id of a picture's row."""
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
            # every chunk has the same shape, since oneDNN stores a plan for each shape
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
    """Return the weighted mean cross-entropy, float32 [], of tokens int64 [T] after states [T, D] under a frozen head
    [V, D] of the same dtype, and the most probable tokens int64 [T]. `chunk` tokens have logits in memory at once."""
    weights = torch.ones(len(targets), device=states.device) if weights is None else weights
    return _ChunkedHeadLoss.apply(states, head, targets, weights / weights.sum(), chunk)
