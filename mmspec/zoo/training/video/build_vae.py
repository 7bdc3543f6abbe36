"""Training of the zoo's causal video autoencoder on clips of moving scenes, with statistics of latents in its config."""

from __future__ import annotations

from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from mmspec.video.pipeline_files import read_vae, write_vae
from mmspec.video.vae import LatentLayout, StreamingWanVAE, small_frames
from mmspec.zoo.training.loop import ZooRecipe, autocast, start_over
from mmspec.zoo.training.objectives import posterior, reconstruction_loss
from mmspec.zoo.training.video.clips import Clip, clip_bytes, clip_filled, clip_pixels
from mmspec.zoo.world.tracking import agreement
from mmspec.zoo.world.video import HELD_OUT, VideoScene, sample_video_scene

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

FIRST_SEED = 6 << 28
MEASURED = HELD_OUT + (2 << 20)  # scenes for the figures of the card
STATISTICS = 64  # training clips for the mean and deviation of latents
_LATEST = 90  # clips begin in these first frames of a scene


@dataclass(frozen=True, slots=True)
class VaeSize:
    """Fields of AutoencoderKLWan. Patches of two pixels halve the sides before its own two levels do: a latent is a
    square of 8 pixels and four frames."""

    base_dim: int = 12
    z_dim: int = 8
    dim_mult: tuple[int, ...] = (1, 2, 4)
    temperal_downsample: tuple[bool, ...] = (True, True)
    num_res_blocks: int = 1
    patch_size: int = 2


@dataclass(frozen=True, slots=True)
class VideoVaeRecipe(ZooRecipe):
    """Most of a frame is background, whose grain no code of this size stores. Looks are learnt from many scenes in
    short clips, and motion afterwards. Further weights are those of `KlRecipe`."""

    name, warmup, weight_decay, data = "video/vae", 50, 0.01, "moving scenes of mmspec.zoo.world"
    size: VaeSize = field(default_factory=VaeSize)
    steps: int = 5400
    again: int = 2400  # second start of the schedule, with weighted objects
    objects: float = 8.0  # additional weight of the pixels of objects
    lr: float = 2e-3
    batch: int = 4
    frames: int = 13  # in three of four steps
    long: int = 25  # frames in every fourth step, which has half as many clips
    short: int = 5  # frames in the first `short_steps`
    short_batch: int = 8  # clips per step in the first `short_steps`
    short_steps: int = 1200
    cuts: float = 0.15  # share of clips that cut to another scene, as a change of prompt does
    squares: float = 1.0
    edges: float = 0.5
    edges_steps: int = 960  # over which the weight of edges grows
    divergence: float = 1e-4
    spread: float = -5.0
    seed: int = 0

    def __post_init__(self) -> None:
        right = min(self.steps, self.edges_steps) >= 1 and min(self.batch, self.short_batch) >= 2
        self.expect(right, "steps and two clips or more")
        if any(frames % 4 != 1 or frames < 5 for frames in (self.frames, self.long, self.short)):
            raise ValueError(
                f"frames: expected 1 + 4n frames, got {self.frames}, {self.long} and {self.short}; use 13, 25 and 5"
            )

    @property
    def most(self) -> int:
        """The most clips in a step."""
        return max(self.batch, self.short_batch)

    def seeds(self) -> dict[str, Any]:
        return {"scene_seeds": [FIRST_SEED, FIRST_SEED + 2 * self.steps * self.most]}

    def edges_at(self, step: int) -> float:
        return self.edges * min(step / self.edges_steps, 1.0)

    def clips(self, step: int) -> tuple[list[Clip], int]:
        """Return the clips of a step and their number of frames. No two steps share a scene."""
        rng = np.random.default_rng((self.seed, step))
        if step < self.short_steps:
            count, frames = self.short_batch, self.short
        else:
            count, frames = (self.batch // 2, self.long) if step % 4 == 3 else (self.batch, self.frames)
        seed = FIRST_SEED + step * 2 * self.most
        return [clip_of(self, rng, seed + 2 * number, frames) for number in range(count)], frames


def clip_of(recipe: VideoVaeRecipe, rng: np.random.Generator, seed: int, frames: int) -> Clip:
    """Return a clip of the scene of `seed`; in the recipe's share of cases it cuts to the next scene."""
    first, cut = int(rng.integers(_LATEST)), int(rng.integers(1, frames))
    then: VideoScene | None = sample_video_scene(seed + 1) if rng.random() < recipe.cuts else None
    return Clip(sample_video_scene(seed), first, then, cut)


def new_autoencoder(size: VaeSize) -> AutoencoderKLWan:
    """Return an untrained autoencoder whose latents are not normalised yet."""
    from diffusers import AutoencoderKLWan

    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(size).items()}
    pixels = 3 * size.patch_size**2
    return AutoencoderKLWan(
        **fields,
        in_channels=pixels,
        out_channels=pixels,
        latents_mean=[0.0] * size.z_dim,
        latents_std=[1.0] * size.z_dim,
        scale_factor_spatial=8,
        scale_factor_temporal=4,
    )


def new_model(recipe: VideoVaeRecipe) -> AutoencoderKLWan:
    """Return the untrained autoencoder, whose posteriors have the variance of the recipe."""
    torch.manual_seed(recipe.seed)
    model = new_autoencoder(recipe.size)
    with torch.no_grad():
        model.quant_conv.bias[recipe.size.z_dim :] = recipe.spread
    return model


def vae_loss(
    model: AutoencoderKLWan, pixels: Tensor, filled: Tensor, noise: Tensor, recipe: VideoVaeRecipe, step: int
) -> tuple[Tensor, dict[str, float]]:
    """Return the reconstruction loss of pixels float32 [B, 3, N, H, W] in -1..1, `filled` [B, 1, N, H, W] 1 where
    objects are, with standard normal noise [B, C, F, h, w]."""
    counts = 1 + recipe.objects * filled if step >= recipe.again else None
    with _lean(pixels.device):
        law = model.encode(pixels).latent_dist
        mean, log_variance, latents = posterior(law, noise)
        decoded = decode_latents(model, latents)
    return reconstruction_loss(decoded, pixels, mean, log_variance, recipe, step, counts)


def _lean(device: torch.device) -> AbstractContextManager[object]:
    return small_frames(device, torch.float32) if device.type == "cpu" else autocast(device)


def decode_latents(model: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """Return pixels [B, 3, N, H, W] without the model's own clamp to -1..1, which has no gradient outside."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, unpatchify

    cache = [None] * sum(isinstance(module, WanCausalConv3d) for module in model.decoder.modules())
    parts = [
        model.decoder(latent, feat_cache=cache, feat_idx=[0], first_chunk=number == 0)
        for number, latent in enumerate(model.post_quant_conv(latents).split(1, dim=2))
    ]
    return unpatchify(torch.cat(parts, 2), patch_size=model.config.patch_size or 1)


def train_video_vae(
    model: AutoencoderKLWan, folder: Path, recipe: VideoVaeRecipe, resume: bool = True, device: str = "cpu"
) -> dict[str, float]:
    """Train an autoencoder in place, with state and log in `folder`."""
    model.to(device).train()

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        clips, frames = recipe.clips(step)
        pixels = clip_pixels(clips, frames)
        shape = (len(clips), recipe.size.z_dim, 1 + frames // 4, pixels.shape[-2] // 8, pixels.shape[-1] // 8)
        noise = torch.randn(shape, generator=recipe.draws(step))
        filled = clip_filled(clips, frames)
        return vae_loss(model, pixels.to(device), filled.to(device), noise.to(device), recipe, step)

    return recipe.train(model, loss_of, folder, resume)


@torch.no_grad()
def statistics(model: AutoencoderKLWan, recipe: VideoVaeRecipe, count: int = STATISTICS) -> tuple[Tensor, Tensor]:
    """Return mean and deviation per channel, float64 [C] each, of the latents of `count` training clips."""
    model.eval()
    clips = [clip_of(recipe, np.random.default_rng(seed), FIRST_SEED + 2 * seed, recipe.long) for seed in range(count)]
    values = [model.encode(clip_pixels([clip], recipe.long)).latent_dist.mode() for clip in clips]
    flat = rearrange(torch.cat(values).double(), "b c f h w -> c (b f h w)")
    return flat.mean(1), flat.std(1)


@torch.no_grad()
def evaluate_video_vae(vae: StreamingWanVAE, count: int = 32, frames: int = 25) -> dict[str, float]:
    """Return L1 (of 255) and PSNR of decoded frames of held-out scenes, and the tracker's agreement in decoded and
    rendered."""
    sums = {"l1": 0.0, "squares": 0.0, "agreement": 0.0, "agreement_rendered": 0.0}
    for number in range(count):
        scene = sample_video_scene(MEASURED + number)
        pixels = clip_pixels([Clip(scene)], frames)
        decoded = vae.decode(vae.encode(pixels)[0])[0]
        named = [(mover.kind, mover.color, mover.direction) for mover in scene.movers]
        for name, value in (
            ("l1", float((decoded - pixels).abs().mean()) * 127.5),
            ("squares", float((decoded - pixels).square().mean())),
            ("agreement", agreement(clip_bytes(decoded[0]), named)),
            ("agreement_rendered", agreement(clip_bytes(pixels[0]), named)),
        ):
            sums[name] += value / count
    psnr = float(-10 * np.log10(sums.pop("squares") / 4))
    return {"psnr": psnr, **sums}


def build(
    out: Path,
    work: Path,
    recipe: VideoVaeRecipe = VideoVaeRecipe(),
    *,
    resume: bool = True,
    device: str = "cpu",
    measured: int = 32,
) -> dict[str, Any]:
    """Train the autoencoder in `work/video_vae`, and write fp16 weights with a card."""
    model = new_model(recipe)
    if not resume:
        start_over(work / recipe.folder)
    figures = train_video_vae(model, work / recipe.folder, recipe, resume, device)
    model.cpu().half().float()  # measures the weights as they are stored
    mean, std = statistics(model, recipe, min(STATISTICS, 2 * measured))
    model.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    write_vae(deepcopy(model).half(), out)
    stored = StreamingWanVAE(read_vae(out).float())
    layout = LatentLayout.of_wan(stored.model)
    facts = {"batch": recipe.batch, "stride": [layout.frames, *(layout.stride,) * 2]}
    return recipe.card(out, stored.model, figures, {"evaluation": evaluate_video_vae(stored, measured)}, **facts)
