"""KL autoencoders: published configs, key names and weights, converted to diffusers' class and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.core.pipeline_folder import Component
from mmspec.imagegen.components import read_weights
from mmspec.imagegen.llamagen.published import unwrap
from mmspec.io.loading import check_weights, count_modules, sketch
from mmspec.io.pretrained import write_weights
from mmspec.io.readers import naming
from mmspec.io.validation import Positive, Size, check_fields, check_types, from_fields

if TYPE_CHECKING:
    from diffusers import AutoencoderKL


SCALE = 0.2325
_PARTS = ("ddconfig", "encoder_and_decoder")  # sections of nested configs with the sizes of both sides
# fields that only training reads, or that are the same in every such model
_LEFT_OUT = ("double_z", "in_channels", "out_ch", "dropout", "stride")


@dataclass(frozen=True, slots=True)
class KLConfig:
    """The sizes of the autoencoder under their published names; the public code fixes `norm_groups` and `scale`."""

    embed_dim: Size = 16
    ch: Size = 128  # the base width
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # in units of ch, finest first; all but the last halve the image
    num_res_blocks: Size = 2
    encoder_attn_resolutions: tuple[int, ...] = (16,)
    decoder_attn_resolutions: tuple[int, ...] = ()
    resolution: Size = 256  # pixels per side to which the attention resolutions refer; nothing else uses it
    z_channels: int | None = None  # None or embed_dim
    norm_groups: Size = 32
    scale: Positive = SCALE  # the factor from latents to tokens

    def __post_init__(self) -> None:
        for name in ("ch_mult", "encoder_attn_resolutions", "decoder_attn_resolutions"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_fields(self)
        if not self.ch_mult or any(width < 1 or width % self.norm_groups for width in self.widths):
            raise ValueError(
                f"ch_mult: expected widths that are multiples of {self.norm_groups} (norm_groups), got "
                f"{self.ch_mult} of {self.ch}; use others"
            )
        if self.z_channels not in (None, self.embed_dim):
            raise ValueError(
                f"z_channels: expected embed_dim {self.embed_dim}, got {self.z_channels}; autoencoders with "
                "another number are not supported"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels per level, finest first."""
        return tuple(self.ch * multiple for multiple in self.ch_mult)

    @property
    def stride(self) -> int:
        """Pixels per cell and side."""
        return 2 ** (len(self.ch_mult) - 1)

    def attends(self, side: str, level: int) -> bool:
        """Return whether a level of "encoder" or "decoder" has attention behind each block; level 0 is the finest."""
        return self.resolution >> level in getattr(self, f"{side}_attn_resolutions")

    @classmethod
    def of(cls, config: KLConfig | Mapping[str, Any]) -> KLConfig:
        """Return the config of a mapping of published field names, nested or flat."""
        return (
            config
            if isinstance(config, KLConfig)
            else from_fields(cls, flat_fields(config), _LEFT_OUT, "a KL autoencoder")
        )

    @classmethod
    def of_model(cls, model: AutoencoderKL) -> KLConfig:
        config, levels = model.config, len(model.config.block_out_channels)
        sides = {"encoder": list(config.down_block_types), "decoder": list(config.up_block_types)[::-1]}
        resolution = config.sample_size
        attention = {
            f"{side}_attn_resolutions": tuple(resolution >> i for i in range(levels) if kinds[i].startswith("Attn"))
            for side, kinds in sides.items()
        }
        base = config.block_out_channels[0]
        return cls(
            embed_dim=config.latent_channels,
            ch=base,
            num_res_blocks=config.layers_per_block,
            ch_mult=tuple(width // base for width in config.block_out_channels),
            resolution=resolution,
            norm_groups=config.norm_num_groups,
            scale=config.scaling_factor,
            **attention,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def flat_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config without its nesting and without the fields that have no meaning here."""
    fields = {name: value for name, value in config.items() if name not in _PARTS}
    for part in _PARTS:
        if isinstance(config.get(part), Mapping):
            fields = {**config[part], **fields}
    return {name: value for name, value in fields.items() if name not in _LEFT_OUT}


# diffusers' name -> published name, in this order
_RENAMED = [
    (re.compile(pattern), into)
    for pattern, into in (
        (r"^encoder\.down_blocks\.(\d+)\.resnets\.", r"encoder.down.\1.block."),
        (r"^encoder\.down_blocks\.(\d+)\.attentions\.", r"encoder.down.\1.attn."),
        (r"^encoder\.down_blocks\.(\d+)\.downsamplers\.0\.", r"encoder.down.\1.downsample."),
        (r"^decoder\.up_blocks\.(\d+)\.resnets\.", r"decoder.up.\1.block."),
        (r"^decoder\.up_blocks\.(\d+)\.attentions\.", r"decoder.up.\1.attn."),
        (r"^decoder\.up_blocks\.(\d+)\.upsamplers\.0\.", r"decoder.up.\1.upsample."),
        (r"\.mid_block\.resnets\.0\.", ".mid.block_1."),
        (r"\.mid_block\.resnets\.1\.", ".mid.block_2."),
        (r"\.mid_block\.attentions\.0\.", ".mid.attn_1."),
        (r"\.conv_shortcut\.", ".nin_shortcut."),
        (r"\.conv_norm_out\.", ".norm_out."),
        (r"\.group_norm\.", ".norm."),
        (r"\.to_([qkv])\.", r".\1."),
        (r"\.to_out\.0\.", ".proj_out."),
    )
]
_UP = re.compile(r"^decoder\.up\.(\d+)\.")
_LINEAR = re.compile(r"\.attn(_1)?\.?\d*\.(q|k|v|proj_out)\.weight$")


def published_name(name: str, levels: int) -> str:
    """Return the published name of a diffusers tensor; that decoder counts its levels from the finest."""
    for pattern, into in _RENAMED:
        name = pattern.sub(into, name)
    return _UP.sub(lambda match: f"decoder.up.{levels - 1 - int(match[1])}.", name)


def as_published(name: str, value: Tensor) -> Tensor:
    """Return a tensor in its published shape: a linear layer of diffusers is a 1 x 1 convolution there."""
    return value[:, :, None, None] if _LINEAR.search(name) else value


def as_diffusers(name: str, value: Tensor) -> Tensor:
    """Return a tensor of that published name in the shape of diffusers."""
    return value[:, :, 0, 0] if _LINEAR.search(name) else value


_WRAPPERS = ("model", "state_dict", "module")
_LOSS = "loss."  # weights of the training's discriminator


def kl_from_state_dict(
    sd: Mapping[str, Any] | str | Path, config: KLConfig | Mapping[str, Any] | None = None
) -> AutoencoderKL:
    """Load the autoencoder of a published checkpoint as diffusers' class, in eval mode, in the checkpoint's dtype.

    Args:
        sd: Tensors under the published names, raw or under "model", of any size; or a .safetensors file.
        config: Published field names; fields that follow from the weights may be left out. `scale`, the factor from
            latents to tokens, does not follow from them and is MAR's 0.2325 by default; it becomes the model's
            `config.scaling_factor`.

    Raises:
        ValueError: Tensors are missing, unknown or misshapen, or a field has a wrong type.
    """
    weights, _ = unwrap(sd if isinstance(sd, Mapping) else read_weights(sd, "mar"), _WRAPPERS)
    weights = {name: value for name, value in weights.items() if not name.startswith(_LOSS)}
    with nullcontext() if isinstance(sd, Mapping) else naming(sd):
        if not isinstance(config, KLConfig):
            fields = flat_fields(config or {})
            check_types(KLConfig, fields)
            config = KLConfig.of({**_fields(weights, fields), **fields})
        return _filled(sketch(lambda: build_kl(config), len(weights), "config"), weights, len(config.ch_mult))


def kl_to_state_dict(model: AutoencoderKL) -> dict[str, Tensor]:
    """Return the weights under the published names, in the published shapes."""
    levels, state = len(model.config.block_out_channels), model.state_dict()
    named = {published_name(name, levels): value for name, value in state.items()}
    return {name: as_published(name, value) for name, value in named.items()}


def write_kl(model: AutoencoderKL, folder: Path) -> None:
    write_weights(kl_to_state_dict(model), KLConfig.of_model(model).to_dict(), folder)


def kl_component(read: Callable[..., AutoencoderKL]) -> Component:
    return Component(
        "vae", "model.vae", read, write_kl, ("diffusers", "AutoencoderKL"), optional=True, keeps_dtype=True
    )


def build_kl(config: KLConfig) -> AutoencoderKL:
    from diffusers import AutoencoderKL

    levels = range(len(config.ch_mult))
    down = tuple("AttnDownEncoderBlock2D" if config.attends("encoder", i) else "DownEncoderBlock2D" for i in levels)
    up = tuple("AttnUpDecoderBlock2D" if config.attends("decoder", i) else "UpDecoderBlock2D" for i in levels[::-1])
    return AutoencoderKL(
        down_block_types=down,
        up_block_types=up,
        block_out_channels=config.widths,
        layers_per_block=config.num_res_blocks,
        latent_channels=config.embed_dim,
        norm_num_groups=config.norm_groups,
        sample_size=config.resolution,
        scaling_factor=config.scale,
    )


def _filled(model: AutoencoderKL, weights: Mapping[str, Tensor], levels: int) -> AutoencoderKL:
    own = {published_name(name, levels): (name, value) for name, value in model.state_dict().items()}
    check_weights({name: as_published(name, value) for name, (_, value) in own.items()}, weights)
    dtype = next(iter(weights.values())).dtype
    dtype = dtype if dtype.is_floating_point else torch.float32
    cast = {own[name][0]: as_diffusers(name, value.detach()).to(dtype) for name, value in weights.items()}
    model.load_state_dict(cast, assign=True)
    return model.eval().requires_grad_(False)


def _fields(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
    implied: dict[str, Any] = {}
    if _dims(weights, "post_quant_conv.weight") > 1:
        implied["embed_dim"] = weights["post_quant_conv.weight"].shape[1]
    if _dims(weights, "encoder.conv_in.weight"):
        implied["ch"] = weights["encoder.conv_in.weight"].shape[0]
    levels, blocks = (
        count_modules(weights, r"encoder\.down\.(\d+)\."),
        count_modules(weights, r"encoder\.down\.0\.block\.(\d+)\."),
    )
    widths = [f"encoder.down.{level}.block.0.conv1.weight" for level in range(min(levels, len(weights)))]
    if implied.get("ch") and widths and all(_dims(weights, name) for name in widths):
        implied["ch_mult"] = tuple(weights[name].shape[0] // implied["ch"] for name in widths)
    if blocks:
        implied["num_res_blocks"] = blocks
    return implied | _attention(weights, config)


def _attention(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attention resolutions: the levels with attention, and the image resolution that the config implies."""
    sides = {"encoder": r"encoder\.down\.(\d+)\.attn\.", "decoder": r"decoder\.up\.(\d+)\.attn\."}
    levels = {side: sorted({int(at[1]) for at in map(re.compile(p).match, weights) if at}) for side, p in sides.items()}
    coarsest = max((level for numbers in levels.values() for level in numbers), default=None)
    if coarsest is None or coarsest > 30:
        return {}
    sizes = [size for side in sides for size in config.get(f"{side}_attn_resolutions", ())]
    resolution = config.get("resolution") or min(sizes or [16]) << coarsest
    resolutions = {f"{side}_attn_resolutions": tuple(resolution >> i for i in own) for side, own in levels.items()}
    return {"resolution": resolution, **resolutions}


def _dims(weights: Mapping[str, Tensor], name: str) -> int:
    return weights[name].dim() if name in weights else 0
