"""Sampling of the value after an accepted path, from a residual that is never written out.

Every residual of the rules is one of three forms of p and q at the accepted node (`Residual`). An exponential race over
the vocabulary draws from it without a norm: the value with the largest r(x) / e(x) wins, e(x) = -log u(x) with a lane of
the stream for every value (Gumbel's trick, one logarithm less). A value keeps its lane wherever it sits, and a row its
numbers in any slot of a batch.

Exact. Both sides of the wrapper race over the same numbers and agree but where two paces are equal up to rounding. Rules
race where kernels run and invert a single uniform elsewhere, which costs a CPU less: exact too, but another value for the
same key. Ties: the lowest id. A value of r(x) = 0 never wins. Where r is empty or not a number the race is p's; a
law that is not one gives an id in range.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.counter import uniforms
from mmspec.kernels.dispatch import BOOL, INDEX, expect, on_kernels
from mmspec.kernels.draft_tree import take_node
from mmspec.kernels.law import at_node, check_laws, residual_law
from mmspec.kernels.log_law import Residual
from mmspec.kernels.sibling_thresholds import kseq_residual, law_without

SMALLEST = 2.0**-53  # of the uniforms' grid: a lane of 0 counts as this


def residual_weights(residual: Residual, node: Tensor) -> Tensor:
    """The residual written out, float [B, V], and p where it is empty. node: int64 [B]."""
    p = at_node(residual.p, node)
    if residual.form == "without":
        return p if residual.remove is None else law_without(p, residual.token, residual.remove)
    q = at_node(residual.q, residual.q_row[node])
    alpha, beta = take_node(residual.alpha, node), take_node(residual.beta, node)
    if residual.form == "kseq":
        return kseq_residual(p, q, beta, alpha)
    return residual_law(p, q, alpha, beta, residual.token, residual.remove)


def residual_sample(
    residual: Residual, node: Tensor, seeds: Tensor, stream: int | Tensor, uniform: Tensor | None = None
) -> Tensor:
    """One value per row that follows `node` int64 [B], int64 [B].

    seeds: int64 [B] and stream, see `counter.uniforms`: value x has lane x.   uniform: float64 [B, V] in [0, 1), numbers
    in place of those.
    """
    _check(residual, node)
    expect("seeds", seeds, INDEX, len(node))
    if uniform is not None:
        expect("uniform", uniform, frozenset({torch.float64}), len(node), residual.p.shape[2])
    if on_kernels(node):
        from mmspec.kernels.gpu.residual_sampling import launch_residual_sample

        return launch_residual_sample(residual, node, seeds, stream, uniform)
    uniform = uniforms(seeds, stream, residual.p.shape[2]) if uniform is None else uniform
    return residual_sample_reference(residual_weights(residual, node), at_node(residual.p, node), uniform)


def _check(residual: Residual, node: Tensor) -> None:
    batch, nodes = residual.p.shape[:2]
    expect("node", node, INDEX, batch)
    if residual.remove is not None:
        expect("token", residual.token, INDEX, batch, nodes)
        expect("remove", residual.remove, BOOL, batch, nodes)
    if residual.form == "without":
        return
    check_laws(residual.p, residual.q)
    expect("q_row", residual.q_row, INDEX, nodes)


def residual_sample_reference(weight: Tensor, p: Tensor, uniform: Tensor) -> Tensor:
    """The winners of races with explicit uniforms, int64 [B].

    weight: float [B, V], see `residual_weights`; where it is empty or not a number p [B, V] races.
    uniform: float64 [B, V] in [0, 1).
    """
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, p)
    pace = weight.double() / -uniform.double().clamp(SMALLEST, 1 - SMALLEST).log()
    return torch.where(weight > 0, pace, -1.0).argmax(-1)
