"""The published autoencoder, written out over its own state dict."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]


def conv(x: Tensor, state: State, name: str, **how) -> Tensor:
    return F.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], **how)


def norm(x: Tensor, state: State, name: str, groups: int) -> Tensor:
    return F.group_norm(x, groups, state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-6)


def block(x: Tensor, state: State, name: str, groups: int) -> Tensor:
    h = conv(F.silu(norm(x, state, f"{name}.norm1", groups)), state, f"{name}.conv1", padding=1)
    h = conv(F.silu(norm(h, state, f"{name}.norm2", groups)), state, f"{name}.conv2", padding=1)
    return (conv(x, state, f"{name}.nin_shortcut") if f"{name}.nin_shortcut.weight" in state else x) + h


def attention(x: Tensor, state: State, name: str, groups: int) -> Tensor:
    h = norm(x, state, f"{name}.norm", groups)
    q, k, v = (conv(h, state, f"{name}.{part}").flatten(2) for part in "qkv")  # [B, C, hw]
    weight = torch.softmax(torch.einsum("bci,bcj->bij", q, k) / q.shape[1] ** 0.5, -1)
    out = torch.einsum("bij,bcj->bci", weight, v).view_as(x)
    return x + conv(out, state, f"{name}.proj_out")


def middle(x: Tensor, state: State, side: str, groups: int) -> Tensor:
    x = block(x, state, f"{side}.mid.block_1", groups)
    return block(attention(x, state, f"{side}.mid.attn_1", groups), state, f"{side}.mid.block_2", groups)


def level(x: Tensor, state: State, name: str, groups: int) -> Tensor:
    number = 0
    while f"{name}.block.{number}.norm1.weight" in state:
        x = block(x, state, f"{name}.block.{number}", groups)
        if f"{name}.attn.{number}.norm.weight" in state:
            x = attention(x, state, f"{name}.attn.{number}", groups)
        number += 1
    return x


def encode(images: Tensor, state: State, levels: int, groups: int = 32) -> Tensor:
    """Moments [B, 2 z, h, w]: means, then log variances."""
    x = conv(images, state, "encoder.conv_in", padding=1)
    for number in range(levels):
        x = level(x, state, f"encoder.down.{number}", groups)
        if number < levels - 1:
            x = conv(F.pad(x, (0, 1, 0, 1)), state, f"encoder.down.{number}.downsample.conv", stride=2)
    x = F.silu(norm(middle(x, state, "encoder", groups), state, "encoder.norm_out", groups))
    return conv(conv(x, state, "encoder.conv_out", padding=1), state, "quant_conv")


def decode(latents: Tensor, state: State, levels: int, groups: int = 32) -> Tensor:
    """Images [B, 3, H, W]."""
    x = conv(conv(latents, state, "post_quant_conv"), state, "decoder.conv_in", padding=1)
    x = middle(x, state, "decoder", groups)
    for number in reversed(range(levels)):
        x = level(x, state, f"decoder.up.{number}", groups)
        if number:
            x = conv(F.interpolate(x, scale_factor=2), state, f"decoder.up.{number}.upsample.conv", padding=1)
    return conv(F.silu(norm(x, state, "decoder.norm_out", groups)), state, "decoder.conv_out", padding=1)
