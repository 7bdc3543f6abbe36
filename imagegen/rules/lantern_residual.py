"""What LANTERN's public code goes on with after a rejection: three variants, for comparison."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mmspec.imagegen.rules.siblingwise import Siblings


def published_residual(
    siblings: Siblings, near: Tensor, wipes: Tensor, variant: Literal["static", "dynamic", "lumina"]
) -> Tensor:
    """float [B, n, V], normalised; uniform where nothing is left.

    near: int64 [B, n, k], the neighbourhood, x not in it.   wipes: bool [B, n], whether the neighbourhood counts at all.
    "static": [law - s]+ with s = 0 on the neighbourhood.   "dynamic": the law without x and the neighbourhood.
    "lumina": [law - s]+ without the neighbourhood. Where q is treated as 1, subtracting s is removing x.
    """
    hood = torch.zeros_like(siblings.law, dtype=torch.bool).scatter_(2, near, wipes[..., None].expand_as(near))
    if siblings.share is None or variant == "dynamic":
        rest = siblings.law.scatter(2, siblings.token[..., None], 0.0)
        rest = rest if variant == "static" else rest.masked_fill(hood, 0.0)
    elif variant == "static":
        rest = (siblings.law - siblings.share.masked_fill(hood, 0.0)).clamp_min_(0)
    else:
        rest = (siblings.law - siblings.share).clamp_min_(0).masked_fill_(hood, 0.0)
    total = rest.sum(-1, keepdim=True)
    empty = torch.where(
        total == 0, 1 / rest.shape[-1], siblings.p
    )  # a law that is not a number falls back to the target's
    return torch.where(total > 0, rest / total, empty)
