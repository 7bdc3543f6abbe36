"""Linear recurrences over a drafted tree in closed form, and the state behind any node of it.

A recurrence S = exp(g) S + k u^T of nodes in topological order: with G the decay summed along a node's path,
    o_i = (exp(G_i) q_i) S0 + sum over ancestors j of (q_i . exp(G_i - G_j) k_j) u_j
    S_i = exp(G_i) S0 + sum over ancestors j of (exp(G_i - G_j) k_j) u_j^T,
a node counting among its ancestors. What a pass brings is (k, u, G), a few rows of each per layer, instead of a state per
node. "ReplaySSM" and "STree: Speculative Tree Decoding for Hybrid State-Space Models" keep the same for chains and for
state-space layers; the delta rule's u, corrected by what the state already predicts, is one triangular solve in the same
order ("Gated Delta Networks: Improving Mamba2 with Delta Rule"). Exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.layers.paths import Paths


@dataclass(slots=True)
class Brought:
    """What a pass brings of one layer. key: [B, H, N, K]; update: [B, H, N, V]; decay: [B, H, N, 1 or K], summed along paths
    and at most 0. All float32.   start: [B, H, K, V], the state before the pass."""

    key: Tensor
    update: Tensor
    decay: Tensor
    start: Tensor

    def behind(self, paths: Paths) -> Tensor:
        """The states [B, H, K, V] behind each row's path of nodes; the state before the pass for an empty one."""
        if paths.leading is not None:
            return self._behind_first(paths.leading)
        kept = paths.kept(self.key.shape[2], self.key.device)
        end = self.decay[torch.arange(len(kept.last), device=kept.last.device), :, kept.last][:, :, None]
        # what was not kept may be anything, so that zeros take its place before sums
        key, update, apart = (x.masked_fill(kept.off, 0.0) for x in (self.key, self.update, end - self.decay))
        moved = self.start * end.exp().transpose(-1, -2) + (key * apart.exp()).transpose(-1, -2) @ update
        return torch.where(kept.still, self.start, moved)

    def _behind_first(self, count: int) -> Tensor:
        """The states behind the first `count` nodes in all rows."""
        if not count:
            return self.start
        key, update, decay = (x[:, :, :count] for x in (self.key, self.update, self.decay))
        end = decay[:, :, -1:]
        weighted = key if count == 1 else key * (end - decay).exp()
        return torch.addcmul(weighted.transpose(-1, -2) @ update, self.start, end.exp().transpose(-1, -2))


def tree_recurrence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    start: Tensor,
    ancestor: Tensor,
    rate: Tensor | None = None,
) -> tuple[Tensor, Brought]:
    """Outputs [B, H, N, V] of a recurrence over a tree, and what the pass brings.

    query, key: [B, H, N, K].   value: [B, H, N, V].   log_decay: [B, H, N, 1], or [B, H, N, K] where every channel of the keys
    decays by itself.   start: [B, H, K, V].   ancestor: bool [R, N, N].   All float32.
    rate: [B, H, N, 1] of the delta rule, u = rate (v - k S) with S as it stands before the node; None adds u = v.
    """
    if ancestor.shape[-1] == 1:
        return _alone(query, key, value, log_decay, start, rate)
    seen = ancestor[:, None]  # [R, 1, N, N]
    decay = seen.to(log_decay) @ log_decay
    apart = decay[:, :, :, None] - decay[:, :, None]  # [B, H, N, N, 1 or K]
    apart = apart.masked_fill(~seen[..., None], -torch.inf).exp()
    update, faded = value, decay.exp()
    if rate is not None:
        known = (key * faded) @ start
        system = rate * _pairs(key, key, apart)
        update = torch.linalg.solve_triangular(system, rate * (value - known), upper=False, unitriangular=True)
    out = (query * faded) @ start + _pairs(query, key, apart) @ update
    return out, Brought(key, update, decay, start)


def _alone(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, start: Tensor, rate: Tensor | None
) -> tuple[Tensor, Brought]:
    """`tree_recurrence` of the root alone: plain decoding's."""
    faded = log_decay.exp()
    update = value if rate is None else rate * (value - (key * faded) @ start)
    out = torch.addcmul((query * faded) @ start, (query * key).sum(-1, keepdim=True), update)
    return out, Brought(key, update, log_decay, start)


def _pairs(query: Tensor, key: Tensor, apart: Tensor) -> Tensor:
    """[B, H, N, N]: q_i . (apart_ij k_j)."""
    if apart.shape[-1] == 1:
        return (query @ key.transpose(-1, -2)) * apart[..., 0]
    return torch.einsum("bhik,bhjk,bhijk->bhij", query, key, apart)
