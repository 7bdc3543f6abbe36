"""Dense pretraining of the hybrid VLM's vision tower, with labels of the object and the letters under every token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mmspec.zoo.architectures.hybrid import MERGE, SIDE
from mmspec.zoo.architectures.llava import PATCH_HEADS
from mmspec.zoo.training.loop import TrainingPlan, autocast, train
from mmspec.zoo.training.vlm.hybrid_rows import grids, patches
from mmspec.zoo.training.vlm.vision_tower import CROWDED, IGNORE, balanced, patch_labels
from mmspec.zoo.world.documents import COLUMNS, Document, page_array, sample_document
from mmspec.zoo.world.glyphs import LETTERS
from mmspec.zoo.world.render import render_array
from mmspec.zoo.world.scene import EVAL_START, sample_scene

SIGNS = " " + LETTERS
WORLD = {name: (len(names), weight) for name, (names, weight) in PATCH_HEADS.items() if name not in ("row", "column")}
PLACES = {"row": (SIDE, 0.3), "column": (SIDE, 0.3)}
CORNERS = {f"letter{corner}": (len(SIGNS), 1.0) for corner in range(MERGE * MERGE)}
SIZES = WORLD | PLACES | CORNERS  # classes and weight of each head


class MergedReader(nn.Module):
    """The vision tower of a Qwen3.5 with its merger, and a linear reading head for each property of a token."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower
        width = tower.config.out_hidden_size
        self.heads = nn.ModuleDict({name: nn.Linear(width, classes) for name, (classes, _) in SIZES.items()})

    def forward(self, pixels: Tensor, grid: Tensor) -> dict[str, Tensor]:
        """Return logits by head, [B, 36, classes], of `patches` float [B * 144, 384] and their grid int64 [B, 3]."""
        merged = self.tower(pixels, grid_thw=grid).pooler_output.view(len(grid), SIDE * SIDE, -1)
        return {name: head(merged) for name, head in self.heads.items()}


def empty_labels() -> dict[str, np.ndarray]:
    """Return the labels of a picture without objects: only the place of each token is known, int64 [36] by head."""
    labels = {name: np.full(SIDE * SIDE, IGNORE, dtype=np.int64) for name in SIZES}
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    return labels | {"row": rows.reshape(-1), "column": columns.reshape(-1)}


def document_labels(document: Document) -> dict[str, np.ndarray]:
    """Return the letters of a page as labels; each of the four patches of a token shows a letter."""
    cells = np.array([[SIGNS.index(letter) for letter in f"{line:<{COLUMNS}}"] for line in document.lines])
    page = np.zeros((COLUMNS, COLUMNS), dtype=np.int64)
    page[: len(cells)] = cells
    corners = rearrange(page, "(row i) (col j) -> (i j) (row col)", i=MERGE, j=MERGE)
    return empty_labels() | {f"letter{corner}": cells for corner, cells in enumerate(corners)}


def reading_batch(first_seed: int, scenes: int, documents: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return patches, grids and labels int64 [B, 36] of crowded scenes and of documents."""
    crowded = [sample_scene(first_seed + i, CROWDED) for i in range(scenes)]
    pages = [sample_document(first_seed + i) for i in range(documents)]
    labels = [empty_labels() | {n: v for n, v in patch_labels(item, SIDE).items() if n in WORLD} for item in crowded]
    labels += map(document_labels, pages)
    pictures = np.stack([*map(render_array, crowded), *map(page_array, pages)])
    stacked = {name: torch.from_numpy(np.stack([item[name] for item in labels])) for name in SIZES}
    return patches(pictures), grids(len(pictures)), stacked


def reading_loss(logits: dict[str, Tensor], labels: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Return the weighted cross-entropy of the heads and their accuracies, jointly for letters except spaces."""
    total = torch.zeros((), device=next(iter(labels.values())).device)
    notes, letters = {}, []
    for name, (_, weight) in SIZES.items():
        scores, target = logits[name].float().flatten(0, 1), labels[name].flatten()
        known = target != IGNORE
        if not bool(known.any()):
            continue
        total = total + weight * F.cross_entropy(scores[known], target[known])
        right = scores.argmax(-1) == target
        if name in CORNERS:
            letters.append(right[target > 0])
        elif name == "kind":
            for part, wanted in (("shape", known & (target < 8)), ("digit", target >= 8)):
                notes[part] = float(right[wanted].float().mean())
        elif name in WORLD:
            notes[name] = float(right[known].float().mean())
    if letters:
        notes["letter"] = float(torch.cat(letters).float().mean())
    return total, notes


@torch.no_grad()
def speak_words(
    reader: MergedReader, tokenizer: Any, embedding: Tensor, first_seed: int, pictures: int = 64, spread: float = 0.1
) -> None:
    """Initialise the merger, in place, to output words of the text model, so that it reads pictures much like text. A
    token's output, of deviation `spread`, is a sum of rows of the embedding float [V, width] for its properties, each
    with the same variance, measured on `pictures` scenes and documents. Properties without a word have random
    directions."""
    pixels, grid, _ = reading_batch(first_seed, pictures, pictures)
    merged = reader.tower(pixels, grid_thw=grid).pooler_output
    mix = _words(tokenizer, embedding).T
    weight, bias = (mix @ part for part in balanced(reader.heads, merged))
    size = spread / F.linear(merged, weight, bias).std()
    last = reader.tower.merger.linear_fc2
    last.bias.copy_(size * F.linear(last.bias, weight, bias))
    last.weight.copy_(size * weight @ last.weight)


def _words(tokenizer: Any, embedding: Tensor) -> Tensor:
    """Return a direction for every class of every head, float [C, width]."""
    width, drawn = embedding.shape[-1], torch.Generator().manual_seed(0)
    directions = []
    for name, (classes, _) in SIZES.items():
        if name in PLACES:
            directions.append(F.normalize(torch.randn(classes, width, generator=drawn), dim=-1))
            continue
        names = [f" {word}" for word in PATCH_HEADS[name][0]] if name in WORLD else list(SIGNS)
        ids = [tokenizer(word, add_special_tokens=False)["input_ids"][-1] for word in names]
        words = F.normalize(embedding[ids].float(), dim=-1)
        if name in CORNERS and name != "letter0":  # the same letters at another corner
            words = words @ torch.linalg.qr(torch.randn(width, width, generator=drawn))[0]
        directions.append(words)
    return torch.cat(directions)


def pretrain_merged_tower(
    tower: nn.Module,
    folder: Path,
    steps: int,
    *,
    scenes: int = 20,
    documents: int = 8,
    lr: float = 2e-3,
    resume: bool = True,
    device: str = "cpu",
) -> tuple[MergedReader, dict[str, float]]:
    """Train a tower in place on labels of its tokens; return it with its heads, and held-out accuracies."""
    torch.manual_seed(0)
    reader = MergedReader(tower).to(device)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        pixels, grid, labels = reading_batch(step * scenes, scenes, documents)
        with autocast(device):
            logits = reader(pixels.to(device), grid.to(device))
        return reading_loss(logits, {name: label.to(device) for name, label in labels.items()})

    train(reader, loss_of, TrainingPlan(steps=steps, lr=lr, warmup=min(100, steps)), folder, "vision tower", resume)
    return reader, evaluate_merged_tower(reader)


@torch.no_grad()
def evaluate_merged_tower(reader: MergedReader, count: int = 96) -> dict[str, float]:
    """Return accuracies on `count` crowded scenes and as many documents of evaluation seeds."""
    device = next(reader.parameters()).device
    pixels, grid, labels = reading_batch(EVAL_START + (1 << 20), count, count)
    reader.eval()
    logits = reader(pixels.to(device), grid.to(device))
    reader.train()
    notes = reading_loss(logits, {name: label.to(device) for name, label in labels.items()})[1]
    return {name: round(value, 4) for name, value in notes.items()}
