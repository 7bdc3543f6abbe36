"""Shared objectives: facts read from prompts and from LlamaGen's states, and reconstruction by autoencoders."""

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
POSITIONS = 16  # random positions per row and step from which the facts of the whole scene are read
LossAndFigures = tuple[Tensor, dict[str, float]]


class ObjectFacts(NamedTuple):
    label: int  # its class
    slot: int
    in_slot: dict[str, int]  # labels of the heads of its slot
    word: tuple[str, str]  # word and color that name it in a prompt
    own: dict[str, int]  # labels of the heads of that word


@dataclass(frozen=True, slots=True)
class FactTable:
    """The facts of scenes as labels of heads, and the losses of these heads."""

    present: str  # head that reads the classes of all objects
    classes: int
    slots: int
    empty: Mapping[str, int]  # by head, the label of a slot without an object
    words: Sequence[str]  # that name an object, after its color
    own: Mapping[str, int]  # sizes of the heads of these words
    objects: Callable[[Any], list[ObjectFacts]]  # scene -> its objects
    all_right: tuple[str, ...] = ()  # heads of slots whose share of fully correct scenes is reported

    def facts(self, scenes: Sequence[Any]) -> dict[str, Tensor]:
        """Return `present` float32 [B, classes]; the heads of slots int64 [B, slots]; "tone" and "backdrop" int64 [B]."""
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
        """Return int64 [B, S] by head for tokens int64 [B, S]: labels of the object that a word names, else
        IGNORED_LABEL."""
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
        """Return the sum of the cross-entropies, and the share of fully correct scenes for `present` and `all_right`."""
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
        """Return the loss of reading each scene's facts at some positions, seeded by the step, and the object's class
        at each of its codes. States are [B, T, dim], labels int64 [B, T], `classes` for none; rows in `drop` bool [B]
        are ignored."""
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
        self,
        reader: FactReader,
        tokenizer: PreTrainedTokenizerFast,
        longest: int,
        scene_of: Callable[[int], Any],
        prompt_of: Callable[[Any, int], str],
        folder: Path,
        *,
        steps: int,
        batch: int,
        resume: bool,
    ) -> FactReader:
        """Train a reader in place on prompts of scenes that are never rendered: seed -> scene, and (scene, step) ->
        prompt of at most `longest` tokens."""

        def loss_of(step: int) -> LossAndFigures:
            scenes = [scene_of(PROMPT_SEED + step * batch + i) for i in range(batch)]
            texts = [prompt_of(scene, step) for scene in scenes]
            rows = tokenizer(texts, padding="max_length", max_length=longest, truncation=True, return_tensors="pt")
            ids = rows["input_ids"]
            whole, own = reader(ids, rows["attention_mask"], step)
            loss, figures = self.loss(whole, self.facts(scenes))
            tokens = self.token_facts(ids, scenes, tokenizer)
            return loss + sum(
                F.cross_entropy(own[name].flatten(0, 1), wanted.flatten(), ignore_index=IGNORED_LABEL)
                for name, wanted in tokens.items()
            ), figures

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
    """Return mean and log variance of an encoder's distribution in float32, and the sample for standard normal noise."""
    mean, log_variance = law.mean.float(), law.logvar.float()
    return mean, log_variance, mean + (0.5 * log_variance).exp() * noise


def decoded_figures(decoded: np.ndarray, real: np.ndarray) -> tuple[float, float]:
    """Return the sums of L1 (of 255) and PSNR over uint8 pictures [B, H, W, 3]."""
    gap = torch.from_numpy(decoded).float() - torch.from_numpy(real).float()
    squares = gap.square().mean((1, 2, 3)).clamp_min(1e-6)
    return float(gap.abs().mean((1, 2, 3)).sum()), float((-10 * (squares / 255**2).log10()).sum())


class ReconstructionWeights(Protocol):
    """Weights of squared errors and divergence, and that of edges, which grows with the step."""

    squares: float
    divergence: float

    def edges_at(self, step: int) -> float: ...


def reconstruction_loss(
    decoded: Tensor,
    pixels: Tensor,
    mean: Tensor,
    log_variance: Tensor,
    weights: ReconstructionWeights,
    step: int,
    counts: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return L1 and squared errors of pixels [..., H, W] in -1..1, L1 of their spatial differences, and the divergence,
    with the figures PSNR, edges and divergence. `counts` are pixel weights, broadcast over `pixels`."""
    gap = decoded.float() - pixels
    squares = gap.square().mean()
    counts = torch.ones_like(gap) if counts is None else (counts / counts.mean()).expand_as(gap)
    edges = sum((gap.diff(dim=side).abs() * counts.narrow(side, 1, gap.shape[side] - 1)).mean() for side in (-2, -1))
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    gaps = ((gap.abs() + weights.squares * gap.square()) * counts).mean()
    loss = gaps + weights.edges_at(step) * edges + weights.divergence * divergence
    # pixels span -1..1, so a squared error of 4 is full scale
    psnr = -10 * (squares.detach() / 4).log10()
    return loss, {"psnr": float(psnr), "edges": float(edges.detach()), "divergence": float(divergence.detach())}
