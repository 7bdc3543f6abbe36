"""Build the zoo's hybrid VLM: a densely pretrained tower, then the rest on captions, questions and documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.zoo.architectures.hybrid import HybridSize, new_model, new_processor
from mmspec.zoo.files.vlm import read_hybrid, write_vlm
from mmspec.zoo.training.loop import ZooRecipe, autocast, load_or_train, start_over
from mmspec.zoo.training.vlm.hybrid_rows import DENSE, SHARES, HybridBatch, HybridEncoder, HybridRow, hybrid_row
from mmspec.zoo.training.vlm.merged_tower import MergedReader, pretrain_merged_tower, speak_words

FIRST_SEED = 1 << 24  # apart from the pictures of the tower
SWAPPED_EVERY = 50  # steps


@dataclass(frozen=True, slots=True)
class HybridRecipe(ZooRecipe):
    name, warmup, weight_decay = "vlm/hybrid", 50, 0.05
    data = "procedural world of mmspec.zoo.world, scenes and documents rendered, captioned and transcribed from seeds"
    size: HybridSize = HybridSize()
    tower_steps: int = 1800  # of the tower's pretraining
    steps: int = 2700
    dense_steps: int = 300  # first steps, on rows with short answers
    batch: int = 16
    lr: float = 2e-3
    muon: float = 2.5
    seed: int = 0

    def seeds(self) -> dict[str, Any]:
        return {
            "tower_seeds": [0, self.tower_steps * 20],
            "row_seeds": [FIRST_SEED, FIRST_SEED + self.steps * self.batch],
        }


def build(
    out: Path,
    work: Path,
    recipe: HybridRecipe = HybridRecipe(),
    *,
    resume: bool = True,
    device: str = "cpu",
    measure: Callable[[Any, Any], dict[str, float]] | None = None,
) -> dict[str, Any]:
    """Train the hybrid VLM, and write fp16 weights and the processor with a card, measured as read back from `out`."""
    folder, tower_folder = work / recipe.folder, work / f"{recipe.folder}_tower"
    if not resume:
        start_over(folder)
    processor = new_processor()
    torch.manual_seed(recipe.seed)
    model = new_model(processor.tokenizer, recipe.size)
    read = _pretrain(model, processor.tokenizer, recipe, tower_folder, resume, device)
    figures = train_hybrid(model, HybridEncoder(processor.tokenizer), recipe, folder, resume, device)
    write_vlm(model.cpu(), processor, out)
    facts = {"layers": recipe.size.kinds, "tower_steps": recipe.tower_steps, "dense_steps": recipe.dense_steps,
             "tower_accuracy": read}  # fmt: skip
    card = recipe.card(out, model, figures, {}, **facts)
    if measure is not None:
        card = recipe.card(out, model, figures, {"evaluation": measure(*read_hybrid(out))}, **facts)
    return card


def _pretrain(
    model: nn.Module, tokenizer: Any, recipe: HybridRecipe, folder: Path, resume: bool, device: str
) -> dict[str, float]:
    """Train or load the tower, initialise its merger with words of the text model, and return its accuracies."""
    tower = model.model.visual
    reader, accuracy = load_or_train(
        folder,
        resume,
        lambda: MergedReader(tower),
        lambda: pretrain_merged_tower(tower, folder, recipe.tower_steps, resume=resume, device=device),
    )
    speak_words(reader.cpu(), tokenizer, model.get_input_embeddings().weight, FIRST_SEED - 64)
    return accuracy


def train_hybrid(
    model: nn.Module,
    encode: HybridEncoder,
    recipe: HybridRecipe,
    folder: Path,
    resume: bool = True,
    device: str = "cpu",
) -> dict[str, float]:
    """Train the merger and the text model on answers only; the rest of the tower is frozen."""
    model.to(device).train()
    model.model.visual.requires_grad_(False).merger.requires_grad_(True)

    def rows_of(step: int) -> list[HybridRow]:
        first, shares = FIRST_SEED + step * recipe.batch, DENSE if step < recipe.dense_steps else SHARES
        return [hybrid_row(first + index, shares) for index in range(recipe.batch)]

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        rows = rows_of(step)
        with autocast(device):
            logits, target, digit = answer_logits(model, encode(rows), encode.digits)
        loss = F.cross_entropy(logits, target)
        right = (logits.argmax(-1) == target).float()
        notes = {"right": float(right.mean()), "digits": float(right[digit].mean()) if bool(digit.any()) else 1.0}
        if step % SWAPPED_EVERY == 0:
            notes["sight"] = swapped_image_loss(model, encode, rows, device) - float(loss.detach())
        return loss, notes

    return recipe.train(model, loss_of, folder, resume)


@torch.no_grad()
def swapped_image_loss(model: nn.Module, encode: HybridEncoder, rows: list[HybridRow], device: str) -> float:
    """Return the loss of rows with swapped pictures. It equals the usual loss where the model ignores pictures."""
    shown = [picture for row in rows for picture in row.pictures]
    moved = iter(shown[1:] + shown[:1])
    swapped = [replace(row, pictures=tuple(next(moved) for _ in row.pictures)) for row in rows]
    with autocast(device):
        logits, target, _ = answer_logits(model, encode(swapped), encode.digits)
    return float(F.cross_entropy(logits, target))


def answer_logits(model: nn.Module, batch: HybridBatch, digits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return float [T, V], the supervised tokens int64 [T], and bool [T], whether each is in `digits`, int64 [D]. Rows
    are padded on the right, where no attention or recurrence reaches back from, so no mask is needed."""
    device = model.device
    inputs = {name: value.to(device) for name, value in batch.inputs.items()}
    logits = model(**inputs, use_cache=False).logits
    wanted = batch.supervised[:, 1:].to(device)
    target = inputs["input_ids"][:, 1:][wanted]
    return logits[:, :-1][wanted].float(), target, torch.isin(target, digits.to(device))
