"""Objectives of several trainings: facts read from prompts and from LlamaGen's states, and reconstruction by autoencoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.zoo.architectures.caption_encoder import FactReader
from mmspec.zoo.training.code_models import WithAuxiliaryHeads
from mmspec.zoo.training.loop import TrainingPlan, train
from mmspec.zoo.world.scene import BACKDROPS, COLORS, TONES

PROMPT_SEED = 1 << 28
IGNORED_LABEL = -100
POSITIONS = 16  # positions of each row that the facts of the whole scene are read from, drawn anew every step
LossAndFigures = tuple[Tensor, dict[str, float]]


class ObjectFacts(NamedTuple):
    """The facts of an object: its class, its slot with the labels of that slot, the word and color of a prompt that name it,
    and the labels of that word."""

    label: int
    slot: int
    in_slot: dict[str, int]
    word: tuple[str, str]
    own: dict[str, int]


@dataclass(frozen=True, slots=True)
class FactTable:
    """The facts of scenes of one kind, as labels of heads, and the losses of these heads.

    present: name of the head that reads the classes of all objects.   classes: how many classes there are.
    slots: number of slots.   empty: by head, the label of a slot without an object.
    all_right: heads of slots whose share of scenes without a mistake is reported.
    words: the words that name an object, behind its color.   own: sizes of the heads of these words.
    objects: the objects of a scene.
    """

    present: str
    classes: int
    slots: int
    empty: Mapping[str, int]
    words: Sequence[str]
    own: Mapping[str, int]
    objects: Callable[[Any], list[ObjectFacts]]
    all_right: tuple[str, ...] = ()

    def facts(self, scenes: Sequence[Any]) -> dict[str, Tensor]:
        """Labels of heads of the whole scene.

        Returns:
            `present` float [B, classes]; the heads of slots int64 [B, slots]; "tone" and "backdrop" int64 [B].
        """
        count = len(scenes)
        labels = {self.present: torch.zeros(count, self.classes)}
        labels |= {name: torch.full((count, self.slots), label) for name, label in self.empty.items()}
        for row, scene in enumerate(scenes):
            for item in self.objects(scene):
                labels[self.present][row, item.label] = 1
                for name, label in item.in_slot.items():
                    labels[name][row, item.slot] = label
        labels["tone"] = torch.tensor([tuple(TONES).index(scene.background.tone) for scene in scenes])
        labels["backdrop"] = torch.tensor([BACKDROPS.index(scene.background.texture) for scene in scenes])
        return labels

    def token_facts(self, ids: Tensor, scenes: Sequence[Any], tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
        """int64 [B, S] by head of single tokens: labels of the object that a word names, IGNORED_LABEL at all other tokens."""
        words = dict(zip(tokenizer.convert_tokens_to_ids(list(self.words)), self.words, strict=True))
        colors = dict(zip(tokenizer.convert_tokens_to_ids(list(COLORS)), COLORS, strict=True))
        labels = {name: torch.full_like(ids, IGNORED_LABEL) for name in self.own}
        for row, (line, scene) in enumerate(zip(ids.tolist(), scenes, strict=True)):
            objects = {item.word: item for item in self.objects(scene)}
            for at, (before, word) in enumerate(zip(line, line[1:], strict=False), 1):
                item = objects.get((words.get(word), colors.get(before)))
                for name, label in item.own.items() if item is not None else ():
                    labels[name][row, at] = label
        return labels

    def loss(self, logits: dict[str, Tensor], wanted: dict[str, Tensor]) -> LossAndFigures:
        """Sum of the heads' cross-entropies; in which share of the scenes the heads of `present` and `all_right` are right."""
        loss = F.binary_cross_entropy_with_logits(logits[self.present], wanted[self.present]) * self.classes
        by_slot = {
            name: rearrange(logits[name], "b (slot size) -> b slot size", slot=self.slots) for name in self.empty
        }
        for name, scores in by_slot.items():
            loss = loss + F.cross_entropy(scores.flatten(0, 1), wanted[name].flatten())
        for name in ("tone", "backdrop"):
            loss = loss + 0.3 * F.cross_entropy(logits[name], wanted[name])
        right = {self.present: (logits[self.present] > 0) == (wanted[self.present] > 0)}
        right |= {name: by_slot[name].argmax(-1) == wanted[name] for name in self.all_right}
        return loss, {name: float(each.all(-1).float().mean()) for name, each in right.items()}

    def reading_loss(
        self, model: WithAuxiliaryHeads, states: Tensor, scenes: Sequence[Any], labels: Tensor, drop: Tensor, step: int
    ) -> Tensor:
        """Loss of the facts of each scene, read at some positions, and of the class of the object at every code of an object.

        Args:
            model: whose heads read.
            states: float [B, T, dim], as the model returns them.
            scenes: of the rows.
            labels: int64 [B, T], the class of the object at a code, `classes` where there is none.
            drop: bool [B], rows without a prompt, which do not count.
            step: decides the positions.
        """
        rows, device = (~drop).nonzero()[:, 0], states.device
        place = torch.randint(states.shape[1], (len(rows), POSITIONS), generator=torch.Generator().manual_seed(step))
        logits = model.read_picture(states[rows.to(device)[:, None], place.to(device)].flatten(0, 1))
        wanted = {name: value[rows].repeat_interleave(POSITIONS, 0) for name, value in self.facts(scenes).items()}
        whole = self.loss(logits, {name: value.to(device) for name, value in wanted.items()})[0]
        labels = labels.masked_fill(drop[:, None], self.classes)
        row, cell = (labels < self.classes).nonzero(as_tuple=True)
        seen = model.read_object(states[row.to(device), cell.to(device)])
        return whole + F.cross_entropy(seen, labels[row, cell].to(device))

    def train_reader(
        self, reader: FactReader, tokenizer: PreTrainedTokenizerFast, longest: int, scene_of: Callable[[int], Any],
        prompt_of: Callable[[Any, int], str], folder: Path, *, steps: int, batch: int, resume: bool,
    ) -> FactReader:  # fmt: skip
        """Train `reader` in place on prompts of scenes that are never rendered; state and log lie in `folder`.

        Args:
            reader: the encoder with its heads.
            tokenizer: of the prompts.
            longest: tokens of a prompt.
            scene_of: the scene of a seed.
            prompt_of: the prompt of a scene in the words of a step.
            folder: of the state and the log.
            steps: of the training.
            batch: prompts of a step.
            resume: go on from the state in `folder`.
        """

        def loss_of(step: int) -> LossAndFigures:
            scenes = [scene_of(PROMPT_SEED + step * batch + i) for i in range(batch)]
            texts = [prompt_of(scene, step) for scene in scenes]
            rows = tokenizer(texts, padding="max_length", max_length=longest, truncation=True, return_tensors="pt")
            ids = rows["input_ids"]
            whole, own = reader(ids, rows["attention_mask"], step)
            loss, figures = self.loss(whole, self.facts(scenes))
            tokens = self.token_facts(ids, scenes, tokenizer)
            return loss + sum(F.cross_entropy(own[name].flatten(0, 1), wanted.flatten(), ignore_index=IGNORED_LABEL)
                              for name, wanted in tokens.items()), figures  # fmt: skip

        train(
            reader,
            loss_of,
            TrainingPlan(steps=steps, lr=2e-3, warmup=50, weight_decay=0.01),
            folder,
            "caption encoder",
            resume,
        )
        return reader.eval()


def posterior(law: Any, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and log variance of an encoder's law in float32, and the value that standard normal noise draws from it."""
    mean, log_variance = law.mean.float(), law.logvar.float()
    return mean, log_variance, mean + (0.5 * log_variance).exp() * noise


def decoded_figures(made: np.ndarray, real: np.ndarray) -> tuple[float, float]:
    """Sums of L1 (of 255) and PSNR over uint8 pictures [B, H, W, 3]."""
    gap = torch.from_numpy(made).float() - torch.from_numpy(real).float()
    squares = gap.square().mean((1, 2, 3)).clamp_min(1e-6)
    return float(gap.abs().mean((1, 2, 3)).sum()), float((-10 * (squares / 255**2).log10()).sum())


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
