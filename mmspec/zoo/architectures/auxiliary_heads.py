"""What makes a small LlamaGen heed its prompt early: it is asked on the way what it was asked for, and objects weigh more.

Left alone it learns textures for thousands of steps first: an object's color and shape are a few bits of a picture of 256
uncertain codes. The heads are dropped after training and the weights end at 1, so what is learnt in the end is the law.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.imagegen.llamagen.transformer import Transformer

from ..world.pictures import CLASSES, PICTURE_SIDE, Picture
from .caption_encoder import HEADS, fact_loss, facts

POSITIONS = 16  # of each row that are asked for the whole picture, drawn anew every step


class Asked(nn.Module):
    """A transformer with heads on the states behind its middle layer, which read the facts of the picture."""

    def __init__(self, gpt: Transformer):
        super().__init__()
        width = gpt.config.dim
        self.gpt = gpt
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.heads = nn.ModuleDict({name: nn.Linear(2 * width, size) for name, size in HEADS.items()})
        self.here = nn.Linear(2 * width, CLASSES)

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

    def reading_loss(self, states: Tensor, pictures: list[Picture], drop: Tensor, step: int) -> Tensor:
        """How badly the facts of each picture are read from some of its positions, and from all positions of an object which
        one it is; rows without a prompt do not count."""
        rows, device = (~drop).nonzero()[:, 0], states.device
        place = torch.randint(states.shape[1], (len(rows), POSITIONS), generator=torch.Generator().manual_seed(step))
        hidden = self._read(states[rows.to(device)[:, None], place.to(device)].flatten(0, 1))
        wanted = {name: value[rows].repeat_interleave(POSITIONS, 0) for name, value in facts(pictures).items()}
        whole = fact_loss({name: head(hidden).float() for name, head in self.heads.items()},
                          {name: value.to(device) for name, value in wanted.items()})[0]  # fmt: skip
        labels = cell_labels(pictures, int(states.shape[1] ** 0.5)).masked_fill(drop[:, None], CLASSES)
        row, cell = (labels < CLASSES).nonzero(as_tuple=True)
        seen = self.here(self._read(states[row.to(device), cell.to(device)])).float()
        return whole + F.cross_entropy(seen, labels[row, cell].to(device))

    def _read(self, states: Tensor) -> Tensor:
        return self.mix(F.rms_norm(states, states.shape[-1:]))


def cell_labels(pictures: list[Picture], side: int) -> Tensor:
    """int64 [B, side * side], the class of the object whose square most of a code lies in, CLASSES where there is none."""
    found, pixels = torch.full((len(pictures), side, side), CLASSES), PICTURE_SIDE // side
    for grid, picture in zip(found, pictures, strict=True):
        for item in picture.items:
            rows, columns = ((round(at / pixels), round((at + item.pixels) / pixels)) for at in (item.y, item.x))
            grid[rows[0] : rows[1], columns[0] : columns[1]] = item.label
    return found.flatten(1)


def object_cells(pictures: list[Picture], side: int) -> Tensor:
    """bool [B, side * side], the codes that an object's square touches or borders on."""
    found, pixels = torch.zeros(len(pictures), side, side, dtype=torch.bool), PICTURE_SIDE // side
    for grid, picture in zip(found, pictures, strict=True):
        for item in picture.items:
            top, left = max(item.y // pixels - 1, 0), max(item.x // pixels - 1, 0)
            grid[top : (item.y + item.pixels - 1) // pixels + 2, left : (item.x + item.pixels - 1) // pixels + 2] = True
    return found.flatten(1)
