"""Objectives of several trainings: facts read from prompts and from LlamaGen's states, and reconstruction by autoencoders.

A small LlamaGen learns textures for thousands of steps before it learns which objects a prompt names: an object's color and
shape are a few bits of a picture of 256 uncertain codes. Auxiliary heads, which are dropped after training, teach these first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.zoo.architectures.caption_encoder import HEADS, FactReader
from mmspec.zoo.training.loop import TrainingPlan, train
from mmspec.zoo.world.image import CLASSES


class WithAuxiliaryHeads(nn.Module):
    """A transformer with heads on the states behind its middle layer, which read the facts of the picture or the video.

    heads: sizes of those that read the whole of it, objects: classes of the object at a code; of pictures unless given.
    """

    def __init__(self, gpt: Transformer, heads: Mapping[str, int] = HEADS, objects: int = CLASSES):
        super().__init__()
        width = gpt.config.dim
        self.gpt = gpt
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.heads = nn.ModuleDict({name: nn.Linear(2 * width, size) for name, size in heads.items()})
        self.here = nn.Linear(2 * width, objects)

    def forward(self, condition: Tensor, codes: Tensor, mask: Tensor | None, drop: Tensor) -> tuple[Tensor, Tensor]:
        """`Transformer.training_logits`, and the states of its last T positions [B, T, dim] behind the middle layer."""
        seen: list[Tensor] = []
        middle = self.gpt.layers[self.gpt.config.n_layer // 2]
        hook = middle.register_forward_hook(lambda module, given, out: seen.append(out))
        try:
            logits = self.gpt.training_logits(condition, codes, mask, drop)
        finally:
            hook.remove()
        return logits, seen[0][:, -codes.shape[1] :]

    def read_picture(self, states: Tensor) -> dict[str, Tensor]:
        """states float [..., dim] -> float32 logits per fact of the whole picture, [..., size of the head]."""
        hidden = self._mixed(states)
        return {name: head(hidden).float() for name, head in self.heads.items()}

    def read_object(self, states: Tensor) -> Tensor:
        """states float [..., dim] -> float32 logits of the class of the object that lies here, [..., objects]."""
        return self.here(self._mixed(states)).float()

    def _mixed(self, states: Tensor) -> Tensor:
        return self.mix(F.rms_norm(states, states.shape[-1:]))


PROMPT_SEED = 1 << 28
IGNORED_LABEL = -100  # a label of nothing
LossAndFigures = tuple[Tensor, dict[str, float]]
# of a step: the prompts, and the loss of what heads read from them, given the prompts' ids
Lesson = tuple[list[str], Callable[[Tensor, dict[str, Tensor], dict[str, Tensor]], LossAndFigures]]


def token_loss(logits: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of heads of single tokens, [B, S, size], with labels int64 [B, S]."""
    return sum(F.cross_entropy(logits[name].flatten(0, 1), target.flatten(), ignore_index=IGNORED_LABEL)
               for name, target in wanted.items())  # fmt: skip


def train_reader(
    reader: FactReader, tokenizer: PreTrainedTokenizerFast, longest: int, lesson: Callable[[int], Lesson], folder: Path,
    steps: int, resume: bool,
) -> FactReader:  # fmt: skip
    """Trains `reader` in place on what `lesson` gives for a step; state and log lie in `folder`.   longest: tokens of a
    prompt."""

    def loss_of(step: int) -> LossAndFigures:
        texts, judge = lesson(step)
        rows = tokenizer(texts, padding="max_length", max_length=longest, truncation=True, return_tensors="pt")
        return judge(rows["input_ids"], *reader(rows["input_ids"], rows["attention_mask"], step))

    train(
        reader,
        loss_of,
        TrainingPlan(steps=steps, lr=2e-3, warmup=50, weight_decay=0.01),
        folder,
        "caption encoder",
        resume,
    )
    return reader.eval()


class ReconstructionWeights(Protocol):
    """A recipe's weights of squares and divergence, and that of edges, which grows with the step."""

    squares: float
    divergence: float

    def edges_at(self, step: int) -> float: ...


def reconstruction_loss(
    made: Tensor, pixels: Tensor, mean: Tensor, log_variance: Tensor, weights: ReconstructionWeights, step: int,
    counts: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
    """L1 and squares of pixels in -1..1, [..., H, W], L1 of their differences in space, and the posterior's divergence.

    counts: how much a pixel counts, broadcast over pixels; None for one like another.
    """
    gap = made.float() - pixels
    squares = gap.square().mean()
    counts = torch.ones_like(gap) if counts is None else (counts / counts.mean()).expand_as(gap)
    edges = sum((gap.diff(dim=side).abs() * counts.narrow(side, 1, gap.shape[side] - 1)).mean() for side in (-2, -1))
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    gaps = ((gap.abs() + weights.squares * gap.square()) * counts).mean()
    loss = gaps + weights.edges_at(step) * edges + weights.divergence * divergence
    # pixels span -1..1, so a squared error of 4 is full scale
    psnr = -10 * (squares.detach() / 4).log10()
    return loss, {"psnr": float(psnr), "edges": float(edges.detach()), "divergence": float(divergence.detach())}
