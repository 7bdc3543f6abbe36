"""Training of the zoo's VQ tokenizer on pictures: reconstruction, commitment, and restarts of unused codes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from mmspec.imagegen.components import write_component
from mmspec.imagegen.llamagen.vq import VQConfig, VQModel
from mmspec.zoo.training.loop import ZooRecipe, autocast
from mmspec.zoo.training.objectives import decoded_figures
from mmspec.zoo.world.image import HELD_OUT, IMAGE_SCENE_SIDE, low_res
from mmspec.zoo.world.pixels import image_arrays, sample_image_scenes, to_bytes, to_pixels

FIRST_SEED = 1 << 27
CROP = IMAGE_SCENE_SIDE // 2


@dataclass(frozen=True, slots=True)
class VqRecipe(ZooRecipe):
    name, builds, warmup, weight_decay = "vq", "t2i", 50, 0.01
    data = "pictures of mmspec.zoo.world: crops of 32x32, pictures shrunk to 32x32, and whole ones"
    steps: int = 3400
    lr: float = 2e-3
    batch: int = 8  # whole pictures, or four times as many of half the side, which cost as much
    whole_every: int = 4  # interval of the steps on whole pictures
    plain_steps: int = 50  # without quantisation, before the codebook is initialised
    restart_every: int = 50  # steps between two restarts of unused codes
    restart_until: float = 0.8  # share of steps after which restarts end
    squares: float = 0.5  # weight of squared errors
    seed: int = 0

    def __post_init__(self) -> None:
        right = min(self.plain_steps, self.batch, self.whole_every, self.restart_every) >= 1
        self.expect(right and self.plain_steps < self.steps, "positive counts and plain_steps below steps")

    def seeds(self) -> dict[str, Any]:
        return {"picture_seeds": [FIRST_SEED, FIRST_SEED + self.steps * 4 * self.batch]}


def batch_arrays(step: int, recipe: VqRecipe) -> np.ndarray:
    """Return uint8 [B, S, S, 3]: whole pictures, or four times as many crops and shrunk pictures."""
    rng = np.random.default_rng((recipe.seed, step, 68))
    first = FIRST_SEED + step * 4 * recipe.batch
    if step % recipe.whole_every == recipe.whole_every - 1:
        return image_arrays(sample_image_scenes(first, recipe.batch))
    whole = image_arrays(sample_image_scenes(first, 4 * recipe.batch))
    return np.stack(
        [low_res(picture) if index % 3 == 0 else _crop(rng, picture) for index, picture in enumerate(whole)]
    )


def _crop(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    top, left = (int(v) for v in rng.integers(0, IMAGE_SCENE_SIDE - CROP + 1, size=2))
    return array[top : top + CROP, left : left + CROP]


def vq_config() -> VQConfig:
    """Return the sizes: pictures of 64x64 as 16x16 codes of 1024, and norms with four channels per group as published."""
    mult = (1, 1, 2)
    return VQConfig(codebook_size=1024, encoder_ch_mult=mult, decoder_ch_mult=mult, z_channels=64, ch=32, norm_groups=8)


def features(model: VQModel, pixels: Tensor) -> Tensor:
    """Return the normalised encoder outputs before quantisation, float32 [N, D]."""
    return rearrange(F.normalize(model.encode_features(pixels).float(), dim=1), "b d h w -> (b h w) d")


def vq_loss(model: VQModel, pixels: Tensor, recipe: VqRecipe, quantised: bool) -> tuple[Tensor, dict[str, float]]:
    """Return the loss (L1, squared errors and the straight-through codebook loss) and its figures."""
    with autocast(pixels.device):
        z = model.encode_features(pixels)
    rows, book = F.normalize(z.float(), dim=1), z.new_zeros(())
    if quantised:
        rows, _, (codebook, commitment) = model.quantize(z.float())
        book = codebook + commitment
    with autocast(pixels.device):
        decoded = model.decode(rows)
    gap = decoded.float() - pixels
    squares = gap.square().mean()
    loss = gap.abs().mean() + recipe.squares * squares + book
    # pixels span -1..1, so a squared error of 4 is full scale
    return loss, {"psnr": float(-10 * (squares.detach() / 4).log10()), "book": float(book.detach())}


@torch.no_grad()
def restart_codes(model: VQModel, step: int, recipe: VqRecipe, dead_only: bool = True) -> int:
    """Replace unused codes (all unless `dead_only`) by encoder outputs of a pool of pictures; return their number. It
    is a pure function of the step and the parameters, so that a resumed run is exact."""
    drawn = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    table = model.quantize.embedding.weight
    first = FIRST_SEED + (1 << 26) + step * 64
    whole = image_arrays(sample_image_scenes(first, 64))
    points = torch.cat([features(model, to_pixels(part).to(table.device)) for part in (whole, low_res(whole))])
    used = torch.zeros(len(table), dtype=torch.bool, device=table.device)
    weight = torch.ones(len(points))
    if dead_only:
        fit, code = (points @ model.codebook().T).max(-1)
        used[code] = True
        weight = (1 - fit).clamp(min=1e-6).cpu()  # a new code near an old code would become unused again
    dead = torch.nonzero(~used).flatten()
    if len(dead):
        picks = torch.multinomial(weight, len(dead), replacement=len(dead) > len(points), generator=drawn)
        table[dead] = points[picks.to(table.device)].to(table.dtype)
    return len(dead)


def train_vq(
    model: VQModel, folder: Path, recipe: VqRecipe = VqRecipe(), resume: bool = True, device: str = "cpu"
) -> dict[str, float]:
    """Train the tokenizer in place, with state and log in `folder`; return the last means of loss and PSNR."""
    model.to(device).train()

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        quantised, renewed = step >= recipe.plain_steps, 0
        if step == recipe.plain_steps:
            renewed = restart_codes(model, step, recipe, dead_only=False)
        elif quantised and step % recipe.restart_every == 0 and step < recipe.restart_until * recipe.steps:
            renewed = restart_codes(model, step, recipe)
        pixels = to_pixels(batch_arrays(step, recipe)).to(device)
        loss, notes = vq_loss(model, pixels, recipe, quantised)
        return loss, {**notes, "renewed": float(renewed)}

    return recipe.train(model, loss_of, folder, resume)


@torch.no_grad()
def evaluate_vq(model: VQModel, count: int = 2000, batch: int = 50) -> dict[str, float]:
    """Return L1 (of 255), PSNR, share of used codes and perplexity, and the PSNR at 32x32, on held-out pictures."""
    model.eval()
    table = model.quantize.embedding.weight
    uses = torch.zeros(len(table), dtype=torch.float64, device=table.device)
    sums: dict[str, float] = {"l1": 0.0, "psnr": 0.0, "psnr_half": 0.0}
    for first in range(0, count, batch):
        whole = image_arrays(sample_image_scenes(HELD_OUT + first, min(batch, count - first)))
        for suffix, part in (("", whole), ("_half", low_res(whole))):
            rows, codes = model.encode(to_pixels(part).to(table.device))
            l1, psnr = decoded_figures(to_bytes(model.decode(rows)), part)
            sums["psnr" + suffix] += psnr
            if not suffix:
                sums["l1"] += l1
                uses += torch.bincount(codes.flatten(), minlength=len(table))
    share = uses / uses.sum()
    entropy = -(share[share > 0] * share[share > 0].log()).sum()
    model.train()
    figures = {name: value / count for name, value in sums.items()}
    return figures | {"codes_used": float((uses > 0).double().mean()), "perplexity": float(entropy.exp())}


def build(
    out: Path,
    work: Path,
    recipe: VqRecipe = VqRecipe(),
    *,
    config: VQConfig | None = None,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 2000,
) -> dict[str, Any]:
    """Train the tokenizer in `work/vq`, and write fp16 weights with a card; `config` None is `vq_config()`."""
    torch.manual_seed(recipe.seed)
    model = VQModel(config or vq_config())
    figures = train_vq(model, work / "vq", recipe, resume, device)
    model.half().float()  # measures the weights as they are stored
    write_component(deepcopy(model).half().cpu(), out)
    return recipe.card(out, model, figures, {"evaluation": evaluate_vq(model, measured)})
