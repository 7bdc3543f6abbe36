"""Convolutions and linear recurrences over a drafted tree in closed form, and the state behind any node of it.

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


@dataclass(frozen=True, slots=True)
class CommittedNodes:
    """A commit's nodes as tensors. last: int64 [B], each row's last node, 0 where it keeps none.   off: bool [B, 1, N, 1], the
    nodes that a row does not keep.   still: bool [B, 1, 1, 1], rows that keep none."""

    last: Tensor
    off: Tensor
    still: Tensor


class CommittedPaths:
    """rows: per row the nodes kept, ascending and root first; empty for a row that stays as it is.

    leading: how many nodes every row keeps, where all keep as many and the first ones; else None.
    """

    def __init__(self, rows: list[list[int]]):
        self.rows = rows
        first, count = rows[0], len(rows[0])
        self.leading = count if first == list(range(count)) and all(nodes == first for nodes in rows) else None
        self._kept: dict[tuple[int, torch.device], CommittedNodes] = {}
        self._windows: dict[tuple[int, torch.device], Tensor] = {}

    def kept(self, nodes: int, device: torch.device) -> CommittedNodes:
        """These of `nodes` nodes."""
        if (nodes, device) not in self._kept:
            off = torch.ones(len(self.rows), nodes, dtype=torch.bool)
            for row, path in enumerate(self.rows):
                off[row, path] = False
            last = torch.tensor([path[-1] if path else 0 for path in self.rows])
            still = torch.tensor([not path for path in self.rows])
            made = CommittedNodes(
                last.to(device), off.to(device)[:, None, :, None], still.to(device)[:, None, None, None]
            )
            self._kept[nodes, device] = made
        return self._kept[nodes, device]

    def windows(self, held: int, device: torch.device) -> Tensor:
        """Which columns of [committed window of `held` columns | nodes] are the window behind the paths, int64 [B, held]."""
        if (held, device) not in self._windows:
            kept = [(list(range(held)) + [held + node for node in path])[-held:] for path in self.rows]
            self._windows[held, device] = torch.tensor(kept, device=device)
        return self._windows[held, device]


def conv_columns(path: Tensor, ancestor: Tensor, taps: int, held: int) -> Tensor:
    """Which columns of [committed window | nodes] the `taps` taps of every node read, int64 [R, N, taps], oldest first.

    path: int64 [R, N, D + 1], root..node.   ancestor: bool [R, N, N].   held: committed columns, at least `taps` - 1.
    """
    depth = ancestor.sum(-1) - 1
    back = torch.arange(taps - 1, -1, -1, device=path.device)
    place = depth[..., None] - back  # along the node's path; negative: committed
    node = path.gather(-1, place.clamp(min=0, max=path.shape[-1] - 1))
    return torch.where(place < 0, held + place, held + node)


def chain_conv(full: Tensor, weight: Tensor, bias: Tensor | None, nodes: int) -> Tensor:
    """As `tree_conv`, of N nodes each the child of the one before it."""
    read = full[..., full.shape[-1] - nodes - weight.shape[-1] + 1 :].unfold(-1, weight.shape[-1], 1)
    return _filtered(read, weight, bias)


def tree_conv(full: Tensor, weight: Tensor, bias: Tensor | None, column: Tensor) -> Tensor:
    """The convolution of every node, [B, C, N].

    full: [B, C, K + N], the committed window and the nodes' inputs.   weight: [C, taps], one filter a channel.
    column: int64 [R, N, taps], from `conv_columns`.
    """
    rows, channels = full.shape[:2]
    column = column.expand(rows, -1, -1)
    nodes, taps = column.shape[1:]
    read = full.gather(2, column.reshape(rows, 1, nodes * taps).expand(-1, channels, -1))
    return _filtered(read.view(rows, channels, nodes, taps), weight, bias)


def _filtered(read: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[B, C, N] of what every node reads, [B, C, N, taps]."""
    out = (read.to(weight.dtype) * weight[:, None]).sum(-1)
    return out if bias is None else out + bias[:, None]


def window_behind(full: Tensor, held: int, paths: CommittedPaths) -> Tensor:
    """The committed window [B, C, K] behind each row's accepted path: its last K columns; unchanged for an empty path.

    full: [B, C, K + N].   held: K.
    """
    if paths.leading is not None:
        return full[..., paths.leading : paths.leading + held]
    return full.gather(2, paths.windows(held, full.device)[:, None].expand(-1, full.shape[1], -1))


@dataclass(slots=True)
class RecurrenceUpdate:
    """What a pass brings of one layer. key: [B, H, N, K]; update: [B, H, N, V]; decay: [B, H, N, 1 or K], summed along paths
    and at most 0. All float32.   start: [B, H, K, V], the state before the pass."""

    key: Tensor
    update: Tensor
    decay: Tensor
    start: Tensor

    def behind(self, paths: CommittedPaths) -> Tensor:
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
) -> tuple[Tensor, RecurrenceUpdate]:
    """Outputs [B, H, N, V] of a recurrence over a tree, and what the pass brings.

    query, key: [B, H, N, K].   value: [B, H, N, V].   log_decay: [B, H, N, 1], or [B, H, N, K] where every channel of the keys
    decays by itself.   start: [B, H, K, V].   ancestor: bool [R, N, N].   All float32.
    rate: [B, H, N, 1] of the delta rule, u = rate (v - k S) with S as it stands before the node; None adds u = v.
    """
    if ancestor.shape[-1] == 1:
        return _single_node(query, key, value, log_decay, start, rate)
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
    return out, RecurrenceUpdate(key, update, decay, start)


def _single_node(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, start: Tensor, rate: Tensor | None
) -> tuple[Tensor, RecurrenceUpdate]:
    """`tree_recurrence` of the root alone: plain decoding's."""
    faded = log_decay.exp()
    update = value if rate is None else rate * (value - (key * faded) @ start)
    out = torch.addcmul((query * faded) @ start, (query * key).sum(-1, keepdim=True), update)
    return out, RecurrenceUpdate(key, update, log_decay, start)


def _pairs(query: Tensor, key: Tensor, apart: Tensor) -> Tensor:
    """[B, H, N, N]: q_i . (apart_ij k_j)."""
    if apart.shape[-1] == 1:
        return (query @ key.transpose(-1, -2)) * apart[..., 0]
    return torch.einsum("bhik,bhjk,bhijk->bhij", query, key, apart)
