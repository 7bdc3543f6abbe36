"""Sizes of a KL autoencoder under the published field names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mmspec.core.config_fields import from_fields

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

SCALE = 0.2325
_PARTS = ("ddconfig", "encoder_and_decoder")  # where nested configs keep the sizes that both sides share
# fields that only training reads, or that are the same in every such model
_LEFT_OUT = ("double_z", "in_channels", "out_ch", "dropout", "stride")


@dataclass(frozen=True, slots=True)
class KLConfig:
    """Fields under their published names, plus those the public code fixes (`norm_groups`, `scale`).

    embed_dim: channels of the latent.   z_channels: None for as many; no other number is supported.
    ch_mult: widths per level in units of ch, finest first; each level but the last halves the image.
    resolution: pixels a side at which `..._attn_resolutions` are counted; only where attention stands depends on it.
    scale: latents times it are tokens.   Raises ValueError for sizes that do not fit.
    """

    embed_dim: int = 16
    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    num_res_blocks: int = 2
    encoder_attn_resolutions: tuple[int, ...] = (16,)
    decoder_attn_resolutions: tuple[int, ...] = ()
    resolution: int = 256
    z_channels: int | None = None
    norm_groups: int = 32
    scale: float = SCALE

    def __post_init__(self) -> None:
        for name in ("ch_mult", "encoder_attn_resolutions", "decoder_attn_resolutions"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("embed_dim", "ch", "num_res_blocks", "resolution", "norm_groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}; use a positive size")
        if not self.ch_mult or any(width < 1 or width % self.norm_groups for width in self.widths):
            raise ValueError(f"ch_mult: expected widths that are multiples of {self.norm_groups} (norm_groups), got "
                             f"{self.ch_mult} of {self.ch}; use others")  # fmt: skip
        if self.z_channels not in (None, self.embed_dim):
            raise ValueError(f"z_channels: expected embed_dim {self.embed_dim}, got {self.z_channels}; such autoencoders are "
                             "not supported")  # fmt: skip
        if not self.scale > 0:
            raise ValueError(f"scale: expected a number above 0, got {self.scale}; correct it")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels per level, finest first."""
        return tuple(self.ch * multiple for multiple in self.ch_mult)

    @property
    def stride(self) -> int:
        """Pixels per cell and side."""
        return 2 ** (len(self.ch_mult) - 1)

    def attends(self, side: str, level: int) -> bool:
        """Whether a level, 0 the finest, of "encoder" or "decoder" has attention behind each of its blocks."""
        return self.resolution >> level in getattr(self, f"{side}_attn_resolutions")

    @classmethod
    def of(cls, config: KLConfig | Mapping[str, Any]) -> KLConfig:
        """From a mapping of published field names, those of both sides nested or not.

        Raises ValueError for unknown fields and values of a wrong type.
        """
        return config if isinstance(config, KLConfig) else from_fields(cls, flat(config), _LEFT_OUT, "a KL autoencoder")

    @classmethod
    def of_model(cls, model: AutoencoderKL) -> KLConfig:
        """The config of a diffusers model that `kl_from_state_dict` made."""
        made, levels = model.config, len(model.config.block_out_channels)
        sides = {"encoder": list(made.down_block_types), "decoder": list(made.up_block_types)[::-1]}
        resolution = made.sample_size
        attention = {
            f"{side}_attn_resolutions": tuple(resolution >> i for i in range(levels) if kinds[i].startswith("Attn"))
            for side, kinds in sides.items()
        }
        return cls(embed_dim=made.latent_channels, ch=made.block_out_channels[0], num_res_blocks=made.layers_per_block,
                   ch_mult=tuple(width // made.block_out_channels[0] for width in made.block_out_channels),
                   resolution=resolution, norm_groups=made.norm_num_groups, scale=made.scaling_factor,
                   **attention)  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Every field, as `of` takes them."""
        return asdict(self)


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config without its nesting, nor those that say nothing here."""
    found = {name: value for name, value in config.items() if name not in _PARTS}
    for part in _PARTS:
        if isinstance(config.get(part), Mapping):
            found = {**config[part], **found}
    return {name: value for name, value in found.items() if name not in _LEFT_OUT}
