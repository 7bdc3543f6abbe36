from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmspec.io.validation import Count, Size, check_fields, from_fields

# width, layers of encoder and decoder each, heads, blocks and width of the diffusion head, published guidance scale
SIZES = {
    "B": (768, 12, 12, 6, 1024, 2.9),
    "L": (1024, 16, 16, 8, 1280, 3.0),
    "H": (1280, 20, 16, 12, 1536, 3.2),
}

_MOST_TOKENS = 1 << 20

# fields of the published config that only its training code or its sampling loop reads
LEFT_OUT = ("mask_ratio_min", "label_drop_prob", "attn_dropout", "proj_dropout", "diffusion_batch_mul", "grad_checkpointing",
            "cfg", "cfg_schedule", "temperature", "num_iter", "bsz")  # fmt: skip


@dataclass(frozen=True, slots=True)
class MARConfig:
    """The sizes of a MAR model under their published names."""

    img_size: Size = 256  # pixels per side
    vae_stride: Size = 16  # pixels per side of a latent cell
    patch_size: Size = 1  # latent cells per side of a token
    encoder_embed_dim: Size = 1024
    encoder_depth: Size = 16
    encoder_num_heads: Size = 16
    decoder_embed_dim: Size = 1024
    decoder_depth: Size = 16
    decoder_num_heads: Size = 16
    mlp_ratio: float = 4.0  # hidden width of the MLPs over the width
    vae_embed_dim: Size = 16
    class_num: Size = 1000
    buffer_size: Size = 64  # the positions in front of the image that hold the class
    diffloss_d: Size = 3  # the blocks of the diffusion head
    diffloss_w: Size = 1024  # the width of the diffusion head
    num_sampling_steps: str | int = "100"  # the head's default, see `kept_timesteps`
    norm_eps: float = 1e-6  # of every layer norm outside the head
    caption_dim: Count = 0  # a feature per buffer position; 0, as published, for classes alone

    def __post_init__(self) -> None:
        check_fields(self)
        for part in ("encoder", "decoder"):
            width, heads = getattr(self, f"{part}_embed_dim"), getattr(self, f"{part}_num_heads")
            if width % heads:
                raise ValueError(
                    f"{part}_embed_dim: expected a multiple of {part}_num_heads {heads}, got {width}; change one"
                )
            if int(width * self.mlp_ratio) < 1:
                raise ValueError(f"mlp_ratio: expected a hidden width of at least 1, got {self.mlp_ratio}; correct it")
        cell = self.vae_stride * self.patch_size
        if self.img_size % cell:
            raise ValueError(
                f"img_size: expected a multiple of {cell} pixels, the side of a token, got {self.img_size}; change one"
            )
        if self.tokens > _MOST_TOKENS:
            raise ValueError(f"img_size: expected at most {_MOST_TOKENS} tokens, got {self.tokens}; correct it")

    @property
    def grid(self) -> int:
        return self.img_size // (self.vae_stride * self.patch_size)

    @property
    def tokens(self) -> int:
        """L, the number of tokens of an image."""
        return self.grid**2

    @property
    def token_dim(self) -> int:
        """d, the number of values of a token."""
        return self.vae_embed_dim * self.patch_size**2

    @classmethod
    def of(cls, config: MARConfig | Mapping[str, Any]) -> MARConfig:
        """Return the config of published field names; fields of training and sampling are ignored."""
        return from_fields(cls, config, LEFT_OUT, "a MAR model")

    @classmethod
    def preset(cls, name: str, **other: Any) -> MARConfig:
        """Return the config of a published size: B, L or H (also written "MAR-B"...), with other fields changed."""
        key = name.removeprefix("MAR-")
        if key not in SIZES:
            raise ValueError(f"name: expected one of {', '.join(SIZES)}, got {name!r}; use one of these")
        width, depth, heads, blocks, inner, _ = SIZES[key]
        same = {
            f"{part}_{field}": value
            for part in ("encoder", "decoder")
            for field, value in (("embed_dim", width), ("depth", depth), ("num_heads", heads))
        }
        return cls(**{**same, "diffloss_d": blocks, "diffloss_w": inner, **other})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
