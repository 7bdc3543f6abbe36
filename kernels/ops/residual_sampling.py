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

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmspec.kernels.counter import uniforms
from mmspec.kernels.dispatch import BOOL, INDEX, expect, on_kernels
from mmspec.kernels.law import LogLaw, check_laws, residual_law
from mmspec.kernels.sibling_thresholds import kseq_residual, law_without
from mmspec.kernels.slots import take_node

SMALLEST = 2.0**-53  # of the uniforms' grid: a lane of 0 counts as this


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """What follows node i of each row, unnormalised, given that it was the last accepted.

    form: "scaled" [alpha p - beta q]+, "kseq" [p - alpha min(p / beta, q)]+, "without" p but for the tokens in `remove`.
    p: [B, N, V]; q: [B, M, V] and q_row int64 [N], its row for each node; None for "without".
    alpha, beta: float [B, N].   token: int64 [B, N]; parent: int64 [R, N]; remove: bool [B, N], for "without": tokens of
    the accepted node's children that go.
    """

    form: Literal["scaled", "kseq", "without"]
    p: Tensor | LogLaw
    q: Tensor | LogLaw | None = None
    q_row: Tensor | None = None
    alpha: Tensor | None = None
    beta: Tensor | None = None
    token: Tensor | None = None
    remove: Tensor | None = None

    @property
    def raced(self) -> bool:
        """Whether rules draw from it by a race: where laws are scores for kernels."""
        return isinstance(self.p, LogLaw)

    def at(self, node: Tensor) -> Tensor:
        """The residual written out, float [B, V], and p where it is empty. node: int64 [B]."""
        p = _row(self.p, node)
        if self.form == "without":
            return p if self.remove is None else law_without(p, self.token, self.remove)
        q, alpha, beta = _row(self.q, self.q_row[node]), take_node(self.alpha, node), take_node(self.beta, node)
        return residual_law(p, q, alpha, beta) if self.form == "scaled" else kseq_residual(p, q, beta, alpha)


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
    return residual_sample_reference(residual.at(node), _row(residual.p, node), uniform)


def _check(residual: Residual, node: Tensor) -> None:
    batch, nodes = residual.p.shape[:2]
    expect("node", node, INDEX, batch)
    if residual.form == "without":
        if residual.remove is not None:
            expect("token", residual.token, INDEX, batch, nodes)
            expect("remove", residual.remove, BOOL, batch, nodes)
        return
    check_laws(residual.p, residual.q)
    expect("q_row", residual.q_row, INDEX, nodes)


def residual_sample_reference(weight: Tensor, p: Tensor, uniform: Tensor) -> Tensor:
    """The winners of races with explicit uniforms, int64 [B]. weight: float [B, V], see `Residual.at`; where it is empty or
    not a number p [B, V] races. uniform: float64 [B, V] in [0, 1)."""
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, p)
    pace = weight.double() / -uniform.double().clamp(SMALLEST, 1 - SMALLEST).log()
    return torch.where(weight > 0, pace, -1.0).argmax(-1)


def _row(law: Tensor | LogLaw, row: Tensor) -> Tensor:
    return law.at(row).dense()[:, 0] if isinstance(law, LogLaw) else take_node(law, row)
