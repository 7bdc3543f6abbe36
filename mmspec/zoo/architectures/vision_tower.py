"""The zoo's vision tower, pretrained densely: every patch inside an object is told what it belongs to."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel

from ..training.loop import Plan, train
from ..world.render import render_array
from ..world.scene import EVAL_START, Scene, SceneConfig, sample_scene
from ..world.words import BACKDROPS, COLORS, IMAGE_SIDE, KINDS, SIZES, TEXTURES, TONES

PATCH = 8
SIDE = IMAGE_SIDE // PATCH
CROWDED = SceneConfig(least=9, most=9, digit_share=0.5)
HEADS = {
    "color": (tuple(COLORS), 1.0),
    "kind": (KINDS, 1.5),
    "size": (tuple(SIZES), 0.5),
    "texture": (TEXTURES, 0.5),
    "tone": (tuple(TONES), 0.2),
    "backdrop": (BACKDROPS, 0.3),
    "row": (tuple(str(i) for i in range(SIDE)), 0.3),  # captions name places: a tower that forgets them is no use
    "column": (tuple(str(i) for i in range(SIDE)), 0.3),
}
IGNORE = -100


def tower_config() -> CLIPVisionConfig:
    """Four layers of 192 on 8-pixel patches: 144 patches of a 96x96 picture."""
    return CLIPVisionConfig(
        hidden_size=192,
        intermediate_size=768,
        projection_dim=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        image_size=IMAGE_SIDE,
        patch_size=PATCH,
        attention_dropout=0.0,
    )


def grid_embedding(side: int, width: int) -> Tensor:
    """Two-dimensional sine and cosine positions, float32 [side * side, width]: neighbours start out alike."""
    quarter = width // 4
    rate = torch.exp(-math.log(100.0) * torch.arange(quarter) / quarter)
    angle = torch.arange(side)[:, None] * rate  # [side, quarter]
    axis = torch.cat([angle.sin(), angle.cos()], dim=-1)  # [side, width / 2]
    rows = axis[:, None].expand(side, side, -1)
    columns = axis[None].expand(side, side, -1)
    return torch.cat([rows, columns], dim=-1).reshape(side * side, width)


class PatchReader(nn.Module):
    """A CLIP tower with one linear reading head per property of the object a patch belongs to."""

    def __init__(self, tower: CLIPVisionModel) -> None:
        super().__init__()
        self.tower = tower
        width = tower.config.hidden_size
        self.heads = nn.ModuleDict({name: nn.Linear(width, len(names)) for name, (names, _) in HEADS.items()})

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """pixels float [B, 3, 96, 96] -> logits per head [B, 144, classes]."""
        hidden = self.tower(pixels, output_hidden_states=True).hidden_states[-1][:, 1:]
        return {name: head(hidden) for name, head in self.heads.items()}


def new_tower(seed: int = 0) -> CLIPVisionModel:
    """A fresh tower whose position table starts as a grid of sines."""
    torch.manual_seed(seed)
    tower = CLIPVisionModel(tower_config())
    table = next(p for name, p in tower.named_parameters() if name.endswith("position_embedding.weight"))
    with torch.no_grad():
        table[1:] = 0.3 * grid_embedding(SIDE, table.shape[1])
    return tower


def to_pixels(arrays: list[np.ndarray]) -> Tensor:
    """uint8 [96, 96, 3] pictures as the processor would hand them over, float32 [B, 3, 96, 96] in -1..1."""
    stacked = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    return stacked.float().div_(127.5).sub_(1.0)


def patch_labels(scene: Scene) -> dict[str, np.ndarray]:
    """Class index per patch and head, int64 [144], IGNORE where a head has nothing to say."""
    labels = {name: np.full((SIDE, SIDE), IGNORE, dtype=np.int64) for name in HEADS}
    labels["tone"][:] = list(TONES).index(scene.background.tone)
    labels["backdrop"][:] = BACKDROPS.index(scene.background.texture)
    labels["row"][:], labels["column"][:] = np.mgrid[0:SIDE, 0:SIDE]
    centers = np.arange(SIDE) * PATCH + PATCH / 2
    for thing in scene.things:
        rows = np.flatnonzero((centers > thing.y) & (centers < thing.y + thing.pixels))
        columns = np.flatnonzero((centers > thing.x) & (centers < thing.x + thing.pixels))
        window = np.ix_(rows, columns)
        for name in ("color", "kind", "size", "texture"):
            labels[name][window] = HEADS[name][0].index(getattr(thing, name))
        for name in ("tone", "backdrop"):
            labels[name][window] = IGNORE
    return {name: grid.reshape(-1) for name, grid in labels.items()}


def tower_batch(first_seed: int, size: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Pictures float32 [B, 3, 96, 96] and labels int64 [B, 144] of the crowded scenes from `first_seed` on."""
    scenes = [sample_scene(first_seed + i, CROWDED) for i in range(size)]
    labels = [patch_labels(scene) for scene in scenes]
    stacked = {name: torch.from_numpy(np.stack([row[name] for row in labels])) for name in HEADS}
    return to_pixels([render_array(scene) for scene in scenes]), stacked


def reading_loss(logits: dict[str, Tensor], labels: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Weighted cross-entropy of the heads and the patch accuracies (digits apart from shapes)."""
    total = torch.zeros((), device=next(iter(labels.values())).device)
    notes = {}
    for name, (_, weight) in HEADS.items():
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
    folder: Path, steps: int, batch: int = 32, lr: float = 1.5e-3, resume: bool = True, device: str = "cpu"
) -> tuple[PatchReader, dict[str, float]]:
    """Train a fresh tower on patch labels in bf16 autocast; returns it, heads included, and held-out accuracies."""
    reader = PatchReader(new_tower()).to(device)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        pixels, labels = tower_batch(step * batch, batch)
        with torch.autocast(device, torch.bfloat16):
            logits = reader(pixels.to(device))
        return reading_loss(logits, {name: label.to(device) for name, label in labels.items()})

    train(reader, loss_of, Plan(steps=steps, lr=lr), folder, "vision tower", resume)
    return reader, evaluate_tower(reader)


@torch.no_grad()
def evaluate_tower(reader: PatchReader, count: int = 128) -> dict[str, float]:
    """Patch accuracies on `count` crowded evaluation scenes (handwriting never trained on)."""
    device = next(reader.parameters()).device
    pixels, labels = tower_batch(EVAL_START + (1 << 20), count)
    reader.eval()
    with torch.autocast(device.type, torch.bfloat16):
        logits = reader(pixels.to(device))
    reader.train()
    return {k: round(v, 4) for k, v in reading_loss(logits, {n: t.to(device) for n, t in labels.items()})[1].items()}
