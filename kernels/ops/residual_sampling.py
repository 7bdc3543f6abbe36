"""Sampling of the value after an accepted path, from a residual that is never written out.

An exponential race over the vocabulary samples from a `Residual` without a norm: the value with the largest r(x) / e(x)
wins, where e(x) = -log u(x) and every value has a lane of the stream (the Gumbel trick with a logarithm less). Exact.
Kernel and reference agree unless two paces are equal up to rounding. On a CPU rules invert a single uniform, which is
cheaper there: exact too, but another value for the same key. Ties: the lowest id. Where r is empty or NaN, p races
instead; where p is NaN, the result is an id in range."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.counter import uniforms
from mmspec.kernels.dispatch import BOOL, INDEX, expect, on_kernels
from mmspec.kernels.draft_tree import take_node
from mmspec.kernels.law import at_node, check_laws, residual_law
from mmspec.kernels.log_law import Residual
from mmspec.kernels.sibling_thresholds import kseq_residual, law_without

SMALLEST = 2.0**-53  # the spacing of uniforms, which replaces a uniform of 0


def residual_weights(residual: Residual, node: Tensor) -> Tensor:
    """Return the residual at `node` int64 [B] as a dense tensor, float [B, V], or p where it is empty."""
    p = at_node(residual.p, node)
    if residual.form == "without":
        return p if residual.remove is None else law_without(p, residual.token, residual.remove)
    q = at_node(residual.q, residual.q_row[node].clamp_min(0))
    alpha, beta = take_node(residual.alpha, node), take_node(residual.beta, node)
    if residual.form == "kseq":
        return kseq_residual(p, q, beta, alpha)
    return residual_law(p, q, alpha, beta, residual.token, residual.remove)


def residual_sample(
    residual: Residual, node: Tensor, seeds: Tensor, stream: int | Tensor, uniform: Tensor | None = None
) -> Tensor:
    """Draw the value after `node` int64 [B] for each row, int64 [B]; value x has lane x of the stream (see
    `counter.uniforms`). `uniform` float64 [B, V] in [0, 1) replaces its numbers."""
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
    """Return the winners of races with explicit uniforms float64 [B, V], int64 [B]; p [B, V] races where the weights
    [B, V] of `residual_weights` are empty or NaN."""
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, p)
    pace = weight.double() / -uniform.double().clamp(SMALLEST, 1 - SMALLEST).log()
    return torch.where(weight > 0, pace, -1.0).argmax(-1)
