"""Training of the zoo's KL autoencoder on pictures: accurate pixels and edges, and latents near a unit normal."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.imagegen.continuous.kl import KLConfig, write_kl
from mmspec.imagegen.continuous.kl import build_kl as new_autoencoder
from mmspec.zoo.architectures.object_detector import ObjectDetector
from mmspec.zoo.files.continuous import read_kl
from mmspec.zoo.training.image.recipe import ImageRecipe
from mmspec.zoo.training.loop import autocast
from mmspec.zoo.training.objectives import decoded_figures, posterior, reconstruction_loss
from mmspec.zoo.world.image import HELD_OUT, IMAGE_SCENE_SIDE, ImageScene
from mmspec.zoo.world.pixels import image_arrays, sample_image_scenes, to_bytes, to_pixels

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

FIRST_SEED = 5 << 28


def kl_config() -> KLConfig:
    """Return the sizes: pictures of 64x64 as 8x8 cells of 16 channels, with attention in both middle blocks only."""
    return KLConfig(
        embed_dim=16,
        ch=32,
        ch_mult=(1, 1, 2, 2),
        num_res_blocks=1,
        encoder_attn_resolutions=(),
        resolution=IMAGE_SCENE_SIDE,
        norm_groups=8,
    )


@dataclass(frozen=True, slots=True)
class KlRecipe(ImageRecipe):
    """The weight of edges grows from 0: while objects are misplaced, the best outline is none, and it would stay so."""

    name: str = "kl"
    steps: int = 8000
    lr: float = 1e-3
    batch: int = 16
    first: int = FIRST_SEED
    weight_decay: float = 0.01
    data: str = "pictures of mmspec.zoo.world, whole ones"
    config: KLConfig = field(default_factory=kl_config)
    squares: float = 1.0  # weight of squared errors
    edges: float = 0.5  # weight of the differences of neighbouring pixels
    edges_after: float = 0.4  # share of steps over which `edges` grows
    divergence: float = 1e-4  # weight of the KL divergence from a unit normal, a mean over all values
    spread: float = -5.0  # initial log variance; 0 would leave noise

    def __post_init__(self) -> None:
        ImageRecipe.__post_init__(self)
        right = min(self.squares, self.edges, self.divergence) >= 0 and 0 < self.edges_after <= 1
        self.expect(right, "weights of 0 or more and a share of the steps")

    def edges_at(self, step: int) -> float:
        return self.edges * min(step / (self.edges_after * self.steps), 1.0)


def new_model(recipe: KlRecipe) -> AutoencoderKL:
    """Return the untrained autoencoder, whose posteriors have the variance of the recipe."""
    torch.manual_seed(recipe.seed)
    model = new_autoencoder(recipe.config)
    with torch.no_grad():
        model.quant_conv.bias[recipe.config.embed_dim :] = recipe.spread
    return model


def kl_loss(
    model: AutoencoderKL, pixels: Tensor, noise: Tensor, recipe: KlRecipe, step: int
) -> tuple[Tensor, dict[str, float]]:
    """Return the reconstruction loss of pixels float32 [B, 3, H, W] in -1..1, with standard normal noise [B, C, h, w]."""
    with autocast(pixels.device):
        law = model.encode(pixels).latent_dist
        mean, log_variance, latents = posterior(law, noise)
        decoded = model.decode(latents).sample
    return reconstruction_loss(decoded, pixels, mean, log_variance, recipe, step)


def train_kl(
    model: AutoencoderKL, folder: Path, recipe: KlRecipe, resume: bool = True, device: str = "cpu"
) -> dict[str, float]:
    """Train an autoencoder in place, with state and log in `folder`; return the means of the last logged steps."""
    side = IMAGE_SCENE_SIDE // recipe.config.stride
    shape = (recipe.batch, recipe.config.embed_dim, side, side)

    def loss(pictures: list[ImageScene], step: int) -> tuple[Tensor, dict[str, float]]:
        drawn = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        noise = torch.randn(shape, generator=drawn).to(device)
        return kl_loss(model, to_pixels(image_arrays(pictures)).to(device), noise, recipe, step)

    return recipe.train_on_images(model, loss, folder, resume, device)


@torch.no_grad()
def unit_scale(model: AutoencoderKL, count: int = 512, batch: int = 64) -> float:
    """Return the factor that scales latents of training pictures, sampled from their posteriors, to unit variance."""
    model.eval()
    sums, device = torch.zeros(3, dtype=torch.float64), next(model.parameters()).device
    for first in range(0, count, batch):
        pixels = to_pixels(image_arrays(sample_image_scenes(FIRST_SEED + first, min(batch, count - first))))
        law = model.encode(pixels.to(device)).latent_dist
        # the expected square of a sample is the squared mean plus the variance, so no noise is needed
        square = law.mean.double().square() + law.var.double()
        sums += torch.stack((law.mean.double().sum(), square.sum(), square.new_tensor(square.numel()))).cpu()
    mean, square = (sums[:2] / sums[2]).tolist()
    return (square - mean**2) ** -0.5


@torch.no_grad()
def evaluate_kl(model: AutoencoderKL, judge: ObjectDetector, count: int = 1000, batch: int = 50) -> dict[str, float]:
    """Return L1 (of 255), PSNR and the shares of objects detected in decoded and original held-out pictures, from
    latent means."""
    model.eval()
    sums = {"l1": 0.0, "psnr": 0.0, "recognised": 0.0, "recognised_real": 0.0}
    total = 0
    for first in range(0, count, batch):
        pictures = sample_image_scenes(HELD_OUT + first, min(batch, count - first))
        real = image_arrays(pictures)
        latents = model.encode(to_pixels(real).to(next(model.parameters()).device)).latent_dist.mean
        decoded = to_bytes(model.decode(latents).sample)
        l1, psnr = decoded_figures(decoded, real)
        sums["l1"] += l1 / count
        sums["psnr"] += psnr / count
        objects = sum(len(scene.items) for scene in pictures)
        total += objects
        for name, images in (("recognised", decoded), ("recognised_real", real)):
            sums[name] += judge.agreement(torch.from_numpy(images), pictures) * objects
    return {name: value / (total if name.startswith("rec") else 1) for name, value in sums.items()}


def build(
    out: Path,
    work: Path,
    judge: ObjectDetector,
    recipe: KlRecipe = KlRecipe(),
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 1000,
) -> dict[str, Any]:
    """Train the autoencoder in `work/kl`, and write fp16 weights with a card. At most 512 training pictures give the
    scale of unit variance in the config."""
    model = new_model(recipe)
    figures = train_kl(model, work / "kl", recipe, resume, device)
    model.cpu().half().float()  # measures the weights as they are stored
    scale = unit_scale(model, min(512, measured))
    model.register_to_config(scaling_factor=scale)
    write_kl(deepcopy(model).half(), out)
    stored = read_kl(out)
    evaluation = evaluate_kl(stored, judge, measured)
    return recipe.card(out, stored, figures, {"evaluation": evaluation}, batch=recipe.batch, scale=round(scale, 6))
