"""Upsamplers from codes of a small image to candidate codes of a large image: through pixels, or a trained network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate

from mmspec.imagegen.llamagen.vq import VQModel
from mmspec.io.pretrained import Pretrained
from mmspec.io.validation import Range, Size, check_fields


class Upsampler(Protocol):
    """The interface of upsamplers. `down` is needed only where rows are drawn a few at a time."""

    scale: int  # codes of the large image per side for each code of the small image

    def up(self, codes: Tensor) -> Tensor:
        """Return the candidates int64 [B, scale r, scale c] of codes int64 [B, r, c], any number of rows from the top."""

    def down(self, codes: Tensor) -> Tensor:
        """Return the codes int64 [B, r, c] of the small image for codes int64 [B, scale r, scale c]."""


@dataclass(frozen=True, slots=True)
class PixelUpsampler:
    """Decodes to pixels, resizes them bicubically and encodes them again. Training-free, the paper's second version.

    For a `VQModel` use `PixelUpsampler.of(vq)`.

    Args:
        decode: The function from codes int64 [B, r, c] to pixels float [B, 3, H, W].
        encode: The function from pixels to codes int64 [B, r, c].
        scale: The factor per side.

    Raises:
        ValueError: The scale is below 2.
    """

    decode: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor], Tensor]
    scale: Annotated[int, Range(2)] = 2

    __post_init__ = check_fields

    @staticmethod
    def of(vq: object, scale: int = 2) -> PixelUpsampler:
        """Return the upsampler through a tokenizer that serves both sizes."""

        def encode(pixels: Tensor) -> Tensor:
            rows, codes = vq.encode(pixels.to(vq.codebook().dtype))
            return codes.view(len(codes), *rows.shape[2:])

        return PixelUpsampler(vq.decode_code, encode, scale)

    def up(self, codes: Tensor) -> Tensor:
        pixels = self.decode(codes).float()
        return self.encode(
            interpolate(pixels, scale_factor=self.scale, mode="bicubic", align_corners=False).clamp(-1, 1)
        )

    def down(self, codes: Tensor) -> Tensor:
        return self.encode(avg_pool2d(self.decode(codes).float(), self.scale).clamp(-1, 1))


@dataclass(frozen=True, slots=True)
class UpsamplerConfig:
    codes: Size  # K
    dim: Size  # d, the width of a code's vector
    width: Size = 64  # channels
    blocks: Size = 3  # residual blocks
    scale: Annotated[int, Range(2)] = 2  # the factor per side

    __post_init__ = check_fields


class RowCausalConv(nn.Module):
    """A 3 x 3 convolution that reads its own row and the two rows above, so that rows can be drafted in turn."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (1, 1, 2, 0)))


class LatentUpsampler(Pretrained):
    """Row-causal convolutions and a pixel shuffle on code vectors, then the nearest codes; the `up` of an `Upsampler`.

    The learned upsampler of "Multi-Scale Local Speculative Decoding for Image Generation", whose sizes are not
    published.

    Attributes:
        codebook: float [K, d], the vectors of the codes; saved with the weights.
    """

    kind: ClassVar[str] = "latent_upsampler"
    kinds: ClassVar[dict[str, type[Pretrained]]] = {}
    config_class: ClassVar[type] = UpsamplerConfig

    def __init__(self, config: UpsamplerConfig):
        super().__init__(config)
        self.register_buffer("codebook", torch.zeros(config.codes, config.dim))
        self.enter = RowCausalConv(config.dim, config.width)
        self.blocks = nn.ModuleList(RowCausalConv(config.width, config.width) for _ in range(config.blocks))
        self.leave = nn.Conv2d(config.width, config.dim * config.scale**2, 1)

    @staticmethod
    def of(codebook: Tensor, **sizes: int) -> LatentUpsampler:
        """Return an untrained upsampler for a codebook float [K, d]; `sizes` as in the config."""
        upsampler = LatentUpsampler(UpsamplerConfig(*codebook.shape, **sizes))
        upsampler.codebook.copy_(codebook.detach())
        return upsampler

    @property
    def scale(self) -> int:
        """The codes of the large image per side for each code of the small image."""
        return self.config.scale

    def forward(self, codes: Tensor) -> Tensor:
        """Return the vectors float [B, d, scale r, scale c] for codes int64 [B, r, c]."""
        rows = self.rows(codes)
        x = self.enter(rows)
        for block in self.blocks:
            x = x + block(F.silu(x))
        return F.interpolate(rows, scale_factor=self.scale) + F.pixel_shuffle(self.leave(F.silu(x)), self.scale)

    def rows(self, codes: Tensor) -> Tensor:
        """Return the codes' vectors, float [B, d, r, c]."""
        return rearrange(self.codebook[codes], "b r c d -> b d r c")

    def nearest(self, vectors: Tensor) -> Tensor:
        """Return int64 [B, R, C], the nearest codes of vectors float [B, d, R, C]."""
        points = rearrange(vectors, "b d r c -> b r c d")
        return (points @ self.codebook.t() - 0.5 * self.codebook.square().sum(-1)).argmax(-1)

    @torch.no_grad()
    def up(self, codes: Tensor) -> Tensor:
        """Return the candidates int64 [B, scale r, scale c] of codes int64 [B, r, c]."""
        return self.nearest(self(codes))


def upsampler_loss(
    model: LatentUpsampler, vq: VQModel, low: Tensor, pixels: Tensor, *, commitment: float = 0.25, pixel: float = 1.0
) -> tuple[Tensor, dict[str, float]]:
    """Return distances to the encoder's features and to the nearest codes, and a pixel loss (L1 and squares; the paper
    adds LPIPS and a patch discriminator). The nearest codes are decoded, with straight-through gradient. `low` int64
    [B, r, c] are small images' codes, `pixels` float [B, 3, H, W] in -1..1. The note "hit" is the share of equal codes.
    """
    with torch.no_grad():
        features = vq.encode_features(pixels)
        wanted = F.normalize(features, dim=1) if vq.config.codebook_l2_norm else features
    vectors = model(low)
    codes = model.nearest(vectors.detach())
    rows = model.rows(codes)
    decoded = vq.decode(vectors + (rows - vectors).detach())
    gap = decoded.float() - pixels
    distance = F.mse_loss(vectors, wanted)
    loss = distance + commitment * F.mse_loss(vectors, rows) + pixel * (gap.abs().mean() + 0.5 * gap.square().mean())
    hit = (codes == model.nearest(wanted)).float().mean()
    return loss, {"distance": float(distance.detach()), "l1": float(gap.detach().abs().mean()), "hit": float(hit)}
