"""Convolutions and linear recurrences over a drafted tree in closed form, and the state after any of its nodes.

A recurrence S = exp(g) S + k u^T over nodes in topological order, with G the decay summed along a node's path:
    o_i = (exp(G_i) q_i) S0 + sum over ancestors j of (q_i . exp(G_i - G_j) k_j) u_j
    S_i = exp(G_i) S0 + sum over ancestors j of (exp(G_i - G_j) k_j) u_j^T,
where a node counts among its ancestors. A pass yields (k, u, G) per node, instead of a state. "ReplaySSM" and "STree:
Speculative Tree Decoding for Hybrid State-Space Models" store the same for chains and for state-space layers. The delta
rule's u, corrected by the prediction of the state, is a triangular solve in the same order ("Gated Delta Networks:
Improving Mamba2 with Delta Rule"). Exact."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CommittedNodes:
    last: Tensor  # int64 [B], each row's last committed node, 0 without any
    off: Tensor  # bool [B, 1, N, 1], the nodes that a row does not commit
    still: Tensor  # bool [B, 1, 1, 1], rows that commit no node


class CommittedPaths:
    """Committed nodes per row, ascending and root first. `leading` is their number if all rows commit the same first
    nodes."""

    def __init__(self, rows: list[list[int]]):
        self.rows = rows
        first, count = rows[0], len(rows[0])
        self.leading = count if first == list(range(count)) and all(nodes == first for nodes in rows) else None
        self._nodes: dict[tuple[int, torch.device], CommittedNodes] = {}
        self._windows: dict[tuple[int, torch.device], Tensor] = {}

    def nodes(self, nodes: int, device: torch.device) -> CommittedNodes:
        if (nodes, device) not in self._nodes:
            off = torch.ones(len(self.rows), nodes, dtype=torch.bool)
            for row, path in enumerate(self.rows):
                off[row, path] = False
            last = torch.tensor([path[-1] if path else 0 for path in self.rows])
            still = torch.tensor([not path for path in self.rows])
            self._nodes[nodes, device] = CommittedNodes(
                last.to(device), off.to(device)[:, None, :, None], still.to(device)[:, None, None, None]
            )
        return self._nodes[nodes, device]

    def windows(self, held: int, device: torch.device) -> Tensor:
        """Return int64 [B, held]: the columns of [committed | nodes] that form the window after each path."""
        if (held, device) not in self._windows:
            columns = [(list(range(held)) + [held + node for node in path])[-held:] for path in self.rows]
            self._windows[held, device] = torch.tensor(columns, device=device)
        return self._windows[held, device]


def conv_columns(path: Tensor, ancestor: Tensor, taps: int, held: int) -> Tensor:
    """Return the columns of [committed | nodes] that taps read, int64 [R, N, taps], oldest first; `held` >= taps - 1.
    `path` int64 [R, N, D + 1] runs from the root to each node; `ancestor` is bool [R, N, N]."""
    depth = ancestor.sum(-1) - 1
    back = torch.arange(taps - 1, -1, -1, device=path.device)
    place = depth[..., None] - back  # an index on the node's path; committed if negative
    node = path.gather(-1, place.clamp(min=0, max=path.shape[-1] - 1))
    return torch.where(place < 0, held + place, held + node)


def chain_conv(full: Tensor, weight: Tensor, bias: Tensor | None, nodes: int) -> Tensor:
    read = full[..., full.shape[-1] - nodes - weight.shape[-1] + 1 :].unfold(-1, weight.shape[-1], 1)
    return _filtered(read, weight, bias)


def tree_conv(full: Tensor, weight: Tensor, bias: Tensor | None, column: Tensor) -> Tensor:
    """Return the convolution of every node, [B, C, N]: `full` [B, C, K + N] is the committed window and the nodes'
    inputs, `weight` [C, taps] a filter per channel, `bias` [C], `column` int64 [R, N, taps] of `conv_columns`."""
    rows, channels = full.shape[:2]
    column = column.expand(rows, -1, -1)
    nodes, taps = column.shape[1:]
    read = full.gather(2, column.reshape(rows, 1, nodes * taps).expand(-1, channels, -1))
    return _filtered(read.view(rows, channels, nodes, taps), weight, bias)


def _filtered(read: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply the filters to the inputs of every node, [B, C, N, taps] -> [B, C, N]."""
    out = (read.to(weight.dtype) * weight[:, None]).sum(-1)
    return out if bias is None else out + bias[:, None]


def window_behind(full: Tensor, held: int, paths: CommittedPaths) -> Tensor:
    """Return the last `held` columns of `full` [B, C, held + N] after each row's path; an empty path leaves the window
    unchanged."""
    if paths.leading is not None:
        return full[..., paths.leading : paths.leading + held]
    return full.gather(2, paths.windows(held, full.device)[:, None].expand(-1, full.shape[1], -1))


@dataclass(slots=True)
class RecurrenceUpdate:
    """The result of a pass over a layer, all float32."""

    key: Tensor  # [B, H, N, K]
    update: Tensor  # [B, H, N, V]
    decay: Tensor  # [B, H, N, 1 or K], summed along paths and at most 0
    start: Tensor  # [B, H, K, V], the state before the pass

    def behind(self, paths: CommittedPaths) -> Tensor:
        """Return the states [B, H, K, V] after each row's path; the state before the pass for an empty path."""
        if paths.leading is not None:
            return self._behind_first(paths.leading)
        nodes = paths.nodes(self.key.shape[2], self.key.device)
        end = self.decay[torch.arange(len(nodes.last), device=nodes.last.device), :, nodes.last][:, :, None]
        # rejected nodes may hold NaN or Inf, so they are zeroed before sums
        key, update, apart = (x.masked_fill(nodes.off, 0.0) for x in (self.key, self.update, end - self.decay))
        moved = self.start * end.exp().transpose(-1, -2) + (key * apart.exp()).transpose(-1, -2) @ update
        return torch.where(nodes.still, self.start, moved)

    def _behind_first(self, count: int) -> Tensor:
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
    """Return the outputs [B, H, N, V] of a recurrence over a tree, and its update, all float32: queries and keys [B, H,
    N, K], values [B, H, N, V], `log_decay` [B, H, N, 1 or K], `start` [B, H, K, V], `ancestor` bool [R, N, N]. `rate`
    [B, H, N, 1] is that of the delta rule, u = rate (v - k S) with S the state before the node; None for u = v."""
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
    faded = log_decay.exp()
    update = value if rate is None else rate * (value - (key * faded) @ start)
    out = torch.addcmul((query * faded) @ start, (query * key).sum(-1, keepdim=True), update)
    return out, RecurrenceUpdate(key, update, log_decay, start)


def _pairs(query: Tensor, key: Tensor, apart: Tensor) -> Tensor:
    """Return q_i . (apart_ij k_j), [B, H, N, N]."""
    if apart.shape[-1] == 1:
        return (query @ key.transpose(-1, -2)) * apart[..., 0]
    return torch.einsum("bhik,bhjk,bhijk->bhij", query, key, apart)
