from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mmspec.io.pretrained import SCALED


def check_scaling(scaling: Mapping[str, Any]) -> None:
    """Check the fields of scaled positions, the `rope_parameters` of a transformers config without the base; empty for
    plain positions. Fields with `mrope_section` are for positions on several axes, see `axes_of`."""
    if not scaling:
        return
    if "mrope_section" in scaling:
        section = scaling["mrope_section"]
        if scaling.get("rope_type", "default") != "default" or len(section) < 2 or min(section) < 0:
            raise ValueError(
                f"mrope_section: expected rotary pairs for each of several axes, unscaled, got {dict(scaling)}"
            )
        return
    if scaling.get("rope_type") not in SCALED:
        raise ValueError(
            f"rope_parameters: expected plain rotary positions or one of {', '.join(SCALED)}, got "
            f"{scaling.get('rope_type')!r}; a drafter would rotate positions differently than in training"
        )
    try:
        frequencies(8, 10000.0, scaling, torch.device("cpu"))
    except (KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(
            f"rope_parameters: expected the fields of {scaling['rope_type']} positions, got {dict(scaling)}; "
            "correct the config"
        ) from error


def frequencies(dim: int, theta: float, scaling: Mapping[str, Any], device: torch.device) -> tuple[Tensor, float]:
    """Return the rotation angle per position of each pair, float32 [dim / 2], and the factor of cos and sin."""
    if not scaling or "mrope_section" in scaling:
        half = dim // 2
        return theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half), 1.0
    trained = scaling.get("original_max_position_embeddings") or 2048
    longest = max(round(trained * scaling["factor"]), trained + 1)  # only for consistency with the factor
    config = LlamaConfig(
        hidden_size=dim,
        num_attention_heads=1,
        head_dim=dim,
        max_position_embeddings=longest,
        rope_parameters={**scaling, "rope_theta": theta},
    )
    with torch.device(device):  # these functions make some tensors without a device
        return ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, device)


def rotary(
    count: int, dim: int, theta: float, device: torch.device, dtype: torch.dtype, scaling: Mapping[str, Any] = {}
) -> Tensor:
    return rotary_of(torch.arange(count, device=device), dim, theta, dtype, scaling)


def rotary_of(position: Tensor, dim: int, theta: float, dtype: torch.dtype, scaling: Mapping[str, Any] = {}) -> Tensor:
    """Return cos and signed sin of positions int64 [...], [..., 2, dim]: sin has the sign of the swapped halves."""
    frequency, factor = frequencies(dim, theta, scaling, position.device)
    angle = position[..., None].float() * frequency
    cos, sin = angle.cos() * factor, angle.sin() * factor
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], -2).to(dtype)


def axes_of(dim: int, scaling: Mapping[str, Any], device: torch.device) -> Tensor:
    """Return the axis of positions that turns each element of a head, int64 [dim]. `mrope_section` gives the pairs of
    each axis, side by side as in Qwen2-VL, or in turns with `mrope_interleaved` as in Qwen3-VL, the rest on the first
    axis."""
    section = scaling["mrope_section"]
    axis = torch.zeros(dim // 2, dtype=torch.long)
    if scaling.get("mrope_interleaved"):
        for number in range(1, len(section)):
            axis[number : section[number] * len(section) : len(section)] = number
    else:
        axis = torch.arange(len(section)).repeat_interleave(torch.tensor(section))
    return torch.cat([axis, axis]).to(device)


def apply_rotary(heads: Tensor, rotary: Tensor) -> Tensor:
    """Rotate [B, n, heads, dim] in the half-split layout by [B or 1, n, 2, dim], whose dtype, if wider, is the
    product's."""
    cos, sin = rotary[:, :, :1], rotary[:, :, 1:]
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin).to(heads.dtype)
