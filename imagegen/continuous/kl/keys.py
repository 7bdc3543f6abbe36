"""Key names: the published autoencoder's and those of diffusers."""

from __future__ import annotations

import re

from torch import Tensor

# of diffusers -> published, in this order
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
    """The published name of a tensor of diffusers. levels: of the autoencoder; the decoder's are counted from the finest."""
    for pattern, into in _RENAMED:
        name = pattern.sub(into, name)
    return _UP.sub(lambda found: f"decoder.up.{levels - 1 - int(found[1])}.", name)


def as_published(name: str, value: Tensor) -> Tensor:
    """A tensor in its published shape: what is a linear layer in diffusers is a 1 x 1 convolution there."""
    return value[:, :, None, None] if _LINEAR.search(name) else value


def as_diffusers(name: str, value: Tensor) -> Tensor:
    """A tensor of that published name in the shape of diffusers."""
    return value[:, :, 0, 0] if _LINEAR.search(name) else value
