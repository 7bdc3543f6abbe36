"""The zoo's vision tower, a small CLIP ViT, and the heads that read its patches while it is pretrained."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel

from ..world.words import BACKDROPS, COLORS, IMAGE_SIDE, KINDS, SIZES, TEXTURES, TONES

PATCH = 8
SIDE = IMAGE_SIDE // PATCH
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
