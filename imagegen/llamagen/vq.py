"""LlamaGen's image tokenizer: a vector-quantised autoencoder whose codebook may live on the unit sphere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isqrt
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mmspec.imagegen.conditioning import empty_embedding
from mmspec.imagegen.llamagen.vq_blocks import GROUPS, VQDecoder, VQEncoder
from mmspec.io.validation import Size, check_fields, from_fields

# fields of the published config that only its training code reads
_TRAINING = ("codebook_show_usage", "entropy_loss_ratio", "dropout_p")


@dataclass(frozen=True, slots=True)
class VQConfig:
    """The sizes of the tokenizer under their published names; the public code fixes the last three."""

    codebook_size: Size = 16384  # K
    codebook_embed_dim: Size = 8  # d, the width of a code's vector
    codebook_l2_norm: bool = True  # whether codes are compared on the unit sphere
    commit_loss_beta: float = 0.25
    encoder_ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # in units of ch, finest first; all but the last halve the image
    decoder_ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    z_channels: Size = 256  # the width of the encoder's output
    ch: int = 128  # the base width
    num_res_blocks: Size = 2
    norm_groups: Size = GROUPS

    def __post_init__(self) -> None:
        for name in ("encoder_ch_mult", "decoder_ch_mult"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_fields(self)
        if not self.encoder_ch_mult or len(self.encoder_ch_mult) != len(self.decoder_ch_mult):
            raise ValueError(
                f"decoder_ch_mult: expected as many levels as encoder_ch_mult {self.encoder_ch_mult}, got "
                f"{self.decoder_ch_mult}; give both the same length"
            )
        widths = {self.ch * m for m in (1, *self.encoder_ch_mult, *self.decoder_ch_mult)}
        if self.ch < 1 or any(width % self.norm_groups or width < 1 for width in widths):
            raise ValueError(
                f"ch: expected every width to be a multiple of {self.norm_groups} (norm_groups), got "
                f"{sorted(widths)}; use another ch"
            )

    @property
    def downsample(self) -> int:
        """Pixels per cell and side: 16 for VQ-16, 8 for VQ-8."""
        return 2 ** (len(self.encoder_ch_mult) - 1)

    @classmethod
    def of(cls, config: VQConfig | Mapping[str, Any]) -> VQConfig:
        """Return the config of a mapping of published field names; fields that only training reads are ignored."""
        return from_fields(cls, config, _TRAINING, "a VQ tokenizer")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def preset(cls, name: str) -> VQConfig:
        """Return the config of the published "VQ-16" or "VQ-8"."""
        levels = {"VQ-16": (1, 1, 2, 2, 4), "VQ-8": (1, 2, 2, 4)}
        if name not in levels:
            raise ValueError(f"name: expected one of {', '.join(levels)}, got {name!r}; use one of these")
        return cls(encoder_ch_mult=levels[name], decoder_ch_mult=levels[name])


class CodeLoss(NamedTuple):
    """The two training losses: the codebook towards the features, and (times beta) the features towards the codebook."""

    codebook: Tensor
    commitment: Tensor


class Quantizer(nn.Module):
    def __init__(self, config: VQConfig):
        super().__init__()
        self.beta, self.l2_norm = config.commit_loss_beta, config.codebook_l2_norm
        self.embedding = empty_embedding(config.codebook_size, config.codebook_embed_dim)
        # torch's default norms are far above the features', so that most rows would never be used
        nn.init.uniform_(self.embedding.weight, -1.0 / config.codebook_size, 1.0 / config.codebook_size)

    def codebook(self) -> Tensor:
        """Return [K, d], with normalised rows where the config sets it."""
        rows = self.embedding.weight
        return F.normalize(rows, dim=-1) if self.l2_norm else rows

    def nearest(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return z [B, d, h, w] as it is compared, and the indices int64 [B, h * w] of its nearest codes."""
        if self.l2_norm:
            z = F.normalize(z, dim=1)
        rows = self.codebook().detach()
        points = rearrange(z.detach(), "b d h w -> b (h w) d")
        score = points @ rows.t() - 0.5 * rows.square().sum(-1)
        return z, score.argmax(-1)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, CodeLoss]:
        """Return z's nearest rows with straight-through gradient, their indices int64 [B, h * w], and the losses."""
        z, indices = self.nearest(z)
        rows = self.rows(indices, *z.shape[2:])
        losses = CodeLoss(F.mse_loss(rows, z.detach()), self.beta * F.mse_loss(z, rows.detach()))
        return z + (rows - z).detach(), indices, losses

    def rows(self, indices: Tensor, height: int, width: int) -> Tensor:
        """Return the rows of the codebook laid out as an image, [B, d, h, w]."""
        rows = F.embedding(indices.flatten(1), self.codebook())
        return rearrange(rows, "b (h w) d -> b d h w", h=height, w=width).contiguous()


class VQModel(nn.Module):
    """The tokenizer under the published names; `quantize(z)` is the training step of the codebook."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        size, dim, blocks = config.z_channels, config.codebook_embed_dim, config.num_res_blocks
        self.encoder = VQEncoder(config.ch, config.encoder_ch_mult, blocks, size, config.norm_groups)
        self.decoder = VQDecoder(config.ch, config.decoder_ch_mult, blocks, size, config.norm_groups)
        self.quantize = Quantizer(config)
        self.quant_conv = nn.Conv2d(size, dim, 1)
        self.post_quant_conv = nn.Conv2d(dim, size, 1)

    def codebook(self) -> Tensor:
        """Return [K, d], the rows that are decoded, normalised where the config sets it."""
        return self.quantize.codebook()

    def encode_features(self, images: Tensor) -> Tensor:
        """Return features [B, d, H / f, W / f] of images [B, 3, H, W] in -1..1, before normalisation and quantisation."""
        factor = self.config.downsample
        if images.dim() != 4 or images.shape[1] != 3 or images.shape[2] % factor or images.shape[3] % factor:
            raise ValueError(
                f"images: expected [B, 3, H, W] with sides divisible by {factor}, got {tuple(images.shape)}; "
                "crop or resize them"
            )
        return self.quant_conv(self.encoder(images))

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [B, d, h, w] and indices int64 [B, h * w] in raster order of images [B, 3, H, W] in -1..1."""
        z = self.encode_features(images)
        _, indices = self.quantize.nearest(z)
        return self.quantize.rows(indices, *z.shape[2:]), indices

    def decode(self, quantized: Tensor) -> Tensor:
        """Return images [B, 3, h f, w f], about -1..1, of rows [B, d, h, w]."""
        return self.decoder(self.post_quant_conv(quantized))

    def decode_code(self, indices: Tensor, height: int | None = None, width: int | None = None) -> Tensor:
        """Return the images of codes int64 [B, h, w], or [B, h * w] with h and w; None for a square image."""
        if indices.dim() == 3:
            height, width = indices.shape[1:]
        elif height is None or width is None:
            height = width = isqrt(indices.shape[1])
        if indices[0].numel() != height * width:
            raise ValueError(
                f"indices: expected {height} x {width} codes per image, got {indices[0].numel()}; give height and width"
            )
        return self.decode(self.quantize.rows(indices, height, width))

    @torch.no_grad()
    def reconstruct(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images)[0])
