"""Dense pretraining of the zoo's vision tower, with labels of the object at every patch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.zoo.architectures.llava import PATCH_HEADS, SIDE, PatchReader, new_tower
from mmspec.zoo.training.loop import TrainingPlan, autocast, prefetched, train
from mmspec.zoo.world.pixels import to_pixels
from mmspec.zoo.world.render import render_array
from mmspec.zoo.world.scene import BACKDROPS, EVAL_START, IMAGE_SIDE, TONES, Scene, SceneConfig, sample_scene

CROWDED = SceneConfig(least=9, most=9, digit_share=0.5)
IGNORE = -100


@torch.no_grad()
def balanced(heads: nn.ModuleDict, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight [C, width] and bias [C] of a linear map to the logits of all reading heads, each property with mean
    0 and the same variance on `hidden`, float [N, width]."""
    weights, biases = [], []
    for head in heads.values():
        logits = head(hidden)
        scale = 1.0 / (logits.std(0) * len(head.bias) ** 0.5)
        weights.append(head.weight * scale[:, None])
        biases.append((head.bias - logits.mean(0)) * scale)
    return torch.cat(weights), torch.cat(biases)


@torch.no_grad()
def point_along(layer: nn.Linear, heads: nn.ModuleDict, hidden: Tensor) -> None:
    """Initialise a projector's first layer as a mixture of reading heads with equal variance on `hidden`."""
    weight, bias = balanced(heads, hidden)
    mix = torch.randn(layer.out_features, len(bias))
    layer.weight.copy_(mix @ weight)
    layer.bias.copy_(mix @ bias)


def patch_labels(scene: Scene, side: int = SIDE) -> dict[str, np.ndarray]:
    """Return the class of every patch by head, int64 [side * side], IGNORE where a head has no label."""
    labels = {name: np.full((side, side), IGNORE, dtype=np.int64) for name in PATCH_HEADS}
    labels["tone"][:] = list(TONES).index(scene.background.tone)
    labels["backdrop"][:] = BACKDROPS.index(scene.background.texture)
    labels["row"][:], labels["column"][:] = np.mgrid[0:side, 0:side]
    centers = (np.arange(side) + 0.5) * (IMAGE_SIDE / side)
    for thing in scene.things:
        rows = np.flatnonzero((centers > thing.y) & (centers < thing.y + thing.pixels))
        columns = np.flatnonzero((centers > thing.x) & (centers < thing.x + thing.pixels))
        window = np.ix_(rows, columns)
        for name in ("color", "kind", "size", "texture"):
            labels[name][window] = PATCH_HEADS[name][0].index(getattr(thing, name))
        for name in ("tone", "backdrop"):
            labels[name][window] = IGNORE
    return {name: grid.reshape(-1) for name, grid in labels.items()}


def tower_batch(first_seed: int, size: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Return pictures float32 [B, 3, 96, 96] and labels int64 [B, 144] of the crowded scenes from `first_seed` on."""
    scenes = [sample_scene(first_seed + i, CROWDED) for i in range(size)]
    labels = [patch_labels(scene) for scene in scenes]
    stacked = {name: torch.from_numpy(np.stack([row[name] for row in labels])) for name in PATCH_HEADS}
    return to_pixels(np.stack([render_array(scene) for scene in scenes])), stacked


def reading_loss(logits: dict[str, Tensor], labels: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Return the weighted cross-entropy of the heads and the patch accuracies, with digits apart from shapes."""
    total = torch.zeros((), device=next(iter(labels.values())).device)
    notes = {}
    for name, (_, weight) in PATCH_HEADS.items():
        scores, target = logits[name].float().flatten(0, 1), labels[name].flatten()
        total = total + weight * F.cross_entropy(scores, target, ignore_index=IGNORE)
        right = scores.argmax(-1) == target
        if name == "kind":
            for part, wanted in (("shape", (target >= 0) & (target < 8)), ("digit", target >= 8)):
                notes[part] = float(right[wanted].float().mean())
        else:
            notes[name] = float(right[target != IGNORE].float().mean())
    return total, notes


def pretrain_tower(
    folder: Path,
    steps: int,
    batch: int = 32,
    lr: float = 1.5e-3,
    resume: bool = True,
    device: str = "cpu",
    workers: int = 0,
) -> tuple[PatchReader, dict[str, float]]:
    """Train a new tower on patch labels; return it with its heads, and held-out accuracies."""
    reader = PatchReader(new_tower()).to(device)
    batch_of = prefetched(lambda step: tower_batch(step * batch, batch), steps, workers)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        pixels, labels = batch_of(step)
        with autocast(device):
            logits = reader(pixels.to(device))
        return reading_loss(logits, {name: label.to(device) for name, label in labels.items()})

    train(reader, loss_of, TrainingPlan(steps=steps, lr=lr), folder, "vision tower", resume)
    return reader, evaluate_tower(reader)


@torch.no_grad()
def evaluate_tower(reader: PatchReader, count: int = 128) -> dict[str, float]:
    """Return patch accuracies on `count` crowded evaluation scenes, with handwriting that no training shows."""
    device = next(reader.parameters()).device
    pixels, labels = tower_batch(EVAL_START + (1 << 20), count)
    reader.eval()
    with autocast(device):
        logits = reader(pixels.to(device))
    reader.train()
    return {k: round(v, 4) for k, v in reading_loss(logits, {n: t.to(device) for n, t in labels.items()})[1].items()}
