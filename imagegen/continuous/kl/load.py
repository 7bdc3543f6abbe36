"""Published KL autoencoders into diffusers' class and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.core.config_fields import check_types
from mmspec.core.filling import check_weights
from mmspec.core.loading import sketch
from mmspec.core.readers import naming
from mmspec.imagegen.continuous.kl.config import KLConfig, flat
from mmspec.imagegen.continuous.kl.keys import as_diffusers, as_published, published_name
from mmspec.imagegen.continuous.mar.load import CONVERT
from mmspec.imagegen.llamagen.state_dict_keys import unwrap
from mmspec.imagegen.llamagen.store import read_weights, write_parts

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

_WRAPPERS = ("model", "state_dict", "module")
_LOSS = "loss."  # of the training's discriminator


def kl_from_state_dict(
    sd: Mapping[str, Any] | str | Path, config: KLConfig | Mapping[str, Any] | None = None
) -> AutoencoderKL:
    """The autoencoder a published checkpoint holds, as diffusers' class, in eval mode, in the checkpoint's dtype.

    sd: tensors under the published names, raw or under "model", of any size; or a .safetensors file.
    config: published field names; what the weights tell may be left out. They do not tell `scale`, by which latents become
        tokens: it is MAR's 0.2325 where not given, and the model's `config.scaling_factor`.
    Raises ValueError, one sentence, for missing, unknown or misshapen tensors and fields of a wrong type.
    """
    weights, _ = unwrap(sd if isinstance(sd, Mapping) else read_weights(sd, CONVERT), _WRAPPERS)
    weights = {name: value for name, value in weights.items() if not name.startswith(_LOSS)}
    with nullcontext() if isinstance(sd, Mapping) else naming(sd):
        if not isinstance(config, KLConfig):
            given = flat(config or {})
            check_types(KLConfig, given)
            config = KLConfig.of({**_fields(weights, given), **given})
        return _filled(sketch(lambda: build(config), len(weights), "config"), weights, len(config.ch_mult))


def kl_to_state_dict(model: AutoencoderKL) -> dict[str, Tensor]:
    """The weights under the published names, in the published shapes."""
    levels, state = len(model.config.block_out_channels), model.state_dict()
    named = {published_name(name, levels): value for name, value in state.items()}
    return {name: as_published(name, value) for name, value in named.items()}


def write_kl(model: AutoencoderKL, folder: Path) -> None:
    """Weights and config under their published names into a folder, made if need be."""
    write_parts(kl_to_state_dict(model), KLConfig.of_model(model).to_dict(), folder)


def build(config: KLConfig) -> AutoencoderKL:
    """diffusers' model of a config, with random weights."""
    from diffusers import AutoencoderKL

    levels = range(len(config.ch_mult))
    down = tuple("AttnDownEncoderBlock2D" if config.attends("encoder", i) else "DownEncoderBlock2D" for i in levels)
    up = tuple("AttnUpDecoderBlock2D" if config.attends("decoder", i) else "UpDecoderBlock2D" for i in levels[::-1])
    return AutoencoderKL(
        down_block_types=down, up_block_types=up, block_out_channels=config.widths, layers_per_block=config.num_res_blocks,
        latent_channels=config.embed_dim, norm_num_groups=config.norm_groups, sample_size=config.resolution,
        scaling_factor=config.scale,
    )  # fmt: skip


def _filled(model: AutoencoderKL, weights: Mapping[str, Tensor], levels: int) -> AutoencoderKL:
    own = {published_name(name, levels): (name, value) for name, value in model.state_dict().items()}
    check_weights({name: as_published(name, value) for name, (_, value) in own.items()}, weights)
    dtype = next(iter(weights.values())).dtype
    dtype = dtype if dtype.is_floating_point else torch.float32
    cast = {own[name][0]: as_diffusers(name, value.detach()).to(dtype) for name, value in weights.items()}
    model.load_state_dict(cast, assign=True)
    return model.eval().requires_grad_(False)


def _fields(weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that follow from the weights; what is missing there is left out."""
    found: dict[str, Any] = {}
    if _dims(weights, "post_quant_conv.weight") > 1:
        found["embed_dim"] = weights["post_quant_conv.weight"].shape[1]
    if _dims(weights, "encoder.conv_in.weight"):
        found["ch"] = weights["encoder.conv_in.weight"].shape[0]
    levels, blocks = _count(weights, r"encoder\.down\.(\d+)\."), _count(weights, r"encoder\.down\.0\.block\.(\d+)\.")
    widths = [f"encoder.down.{level}.block.0.conv1.weight" for level in range(min(levels, len(weights)))]
    if found.get("ch") and widths and all(_dims(weights, name) for name in widths):
        found["ch_mult"] = tuple(weights[name].shape[0] // found["ch"] for name in widths)
    if blocks:
        found["num_res_blocks"] = blocks
    return found | _attention(weights, given)


def _attention(weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """Where attention stands: levels that have it, as sides of an image whose resolution makes them what the config says."""
    sides = {"encoder": r"encoder\.down\.(\d+)\.attn\.", "decoder": r"decoder\.up\.(\d+)\.attn\."}
    levels = {side: sorted({int(at[1]) for at in map(re.compile(p).match, weights) if at}) for side, p in sides.items()}
    coarsest = max((level for found in levels.values() for level in found), default=None)
    if coarsest is None or coarsest > 30:
        return {}
    sizes = [size for side in sides for size in given.get(f"{side}_attn_resolutions", ())]
    resolution = given.get("resolution") or min(sizes or [16]) << coarsest
    told = {f"{side}_attn_resolutions": tuple(resolution >> i for i in found) for side, found in levels.items()}
    return {"resolution": resolution, **told}


def _count(weights: Mapping[str, Tensor], pattern: str) -> int:
    found = (re.match(pattern, name) for name in weights)
    return max((int(one[1]) + 1 for one in found if one), default=0)


def _dims(weights: Mapping[str, Tensor], name: str) -> int:
    return weights[name].dim() if name in weights else 0
