"""Sampling from scores: truncation by top-k and top-p, and draws from a distribution with explicit uniforms.

Kernels find the cut by pivots, without sorting. Ties at the cut all stay. top-p keeps a value if strictly likelier
values have at most mass p of the distribution so far: "top_k_first" measures this within the top k, "top_p_first" over
all values. Masses are summed in float32 (float64 for float64 scores), so a cut may differ by a value within rounding of
p. A row with NaN or +Inf gives NaN, a row of -Inf gives -Inf; both are laws of NaN."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mmspec.kernels.dispatch import FLOATS, WIDE, expect, expect_dense, on_kernels, wide


def sample_categorical(weight: Tensor, uniform: Tensor) -> Tensor:
    """Draw an index per row by inversion, int64 [...], from weights [..., V] with a positive entry and uniforms [...]
    in [0, 1). The sums run in float64. An index of weight 0 is never returned, even at uniform 0."""
    total = weight.cumsum(-1, dtype=torch.float64)
    whole = total[..., -1:].contiguous()
    at = torch.searchsorted(total, uniform.double()[..., None] * whole, right=True)
    # a point that rounding pushed onto the total goes to the last index with mass
    last = torch.searchsorted(total, whole).clamp_max_(weight.shape[-1] - 1)  # in range even for NaN
    return at.minimum(last).squeeze(-1)


def truncation_floor(
    scores: Tensor,
    top_k: int = 0,
    top_p: float = 1.0,
    inverse: Tensor | None = None,
    order: Literal["top_k_first", "top_p_first"] = "top_k_first",
) -> Tensor:
    """Return the smallest scaled score that each row of scores [B, M, V] keeps, float [B, M], the floor of `row_stats`.
    A `top_k` of 0 and a `top_p` of 1 keep all; `inverse` [B] is 1 / T."""
    expect("scores", scores, FLOATS, None, None, None)
    expect_dense("scores", scores)
    if inverse is not None:
        expect("inverse", inverse, WIDE, scores.shape[0])
    if top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(f"expected top_k >= 0 and top_p in (0, 1], got {top_k} and {top_p}")
    top_k = 0 if top_k >= scores.shape[2] else top_k
    if on_kernels(scores):
        from mmspec.kernels.gpu.sampling import launch_truncation_floor

        return launch_truncation_floor(scores, top_k, top_p, inverse, order == "top_p_first")
    return truncation_floor_reference(scores, top_k, top_p, inverse, order)


def truncated_scores(
    scores: Tensor, top_k: int, top_p: float, order: Literal["top_k_first", "top_p_first"] = "top_k_first"
) -> Tensor:
    """Return scores [..., V] with -Inf for those that top-k or top-p removes. A CPU sorts for top-p, and of equal
    scores at the cut it keeps those that sort first; kernels keep all of them."""
    if on_kernels(scores) and (0 < top_k < scores.shape[-1] or top_p < 1):
        from mmspec.kernels.gpu.sampling import launch_mask

        rows = scores.reshape(1, -1, scores.shape[-1])
        return launch_mask(rows[0], truncation_floor(rows, top_k, top_p, order=order)[0]).view(scores.shape)
    steps = (_top_k, _top_p) if order == "top_k_first" else (_top_p, _top_k)
    for step in steps:
        scores = step(scores, top_k if step is _top_k else top_p)
    return scores


def _top_k(scores: Tensor, top_k: int) -> Tensor:
    if not 0 < top_k < scores.shape[-1]:
        return scores
    least = scores.topk(top_k, -1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf)


def _top_p(scores: Tensor, top_p: float) -> Tensor:
    if top_p >= 1:
        return scores
    ordered, place = scores.sort(-1, descending=True)
    law = ordered.softmax(-1)
    cut = law.cumsum(-1) - law > top_p  # the value that crosses top_p stays
    return scores.masked_fill(cut.scatter(-1, place, cut), -torch.inf)


def truncation_floor_reference(
    scores: Tensor, top_k: int, top_p: float, inverse: Tensor | None, order: str = "top_k_first"
) -> Tensor:
    scaled = scores.to(wide(scores.dtype))
    scaled = scaled if inverse is None else scaled * inverse.to(scaled.dtype)[:, None, None]
    ordered = scaled.sort(-1, descending=True).values
    kth = ordered[..., top_k - 1] if top_k else torch.full_like(ordered[..., 0], -torch.inf)
    if top_p >= 1:
        floor = kth
    else:
        inside = ordered >= kth[..., None] if order == "top_k_first" else torch.ones_like(ordered, dtype=torch.bool)
        law = ordered.masked_fill(~inside, -torch.inf).softmax(-1)
        ahead = law.cumsum(-1) - law
        # equal scores share the mass strictly ahead of the first of them
        first = torch.cat((torch.ones_like(inside[..., :1]), ordered[..., 1:] != ordered[..., :-1]), -1)
        ahead = torch.where(first, ahead, 0.0).cummax(-1).values
        nucleus = torch.where((ahead <= top_p) & inside, ordered, torch.inf).amin(-1)
        floor = nucleus
        if top_k and order == "top_p_first":
            floor = torch.maximum(floor, kth)
    bad = ordered[..., 0].isnan() | (ordered[..., 0] == torch.inf)
    floor = torch.where(ordered[..., 0] == -torch.inf, -torch.inf, floor)
    return torch.where(bad, torch.nan, floor)
