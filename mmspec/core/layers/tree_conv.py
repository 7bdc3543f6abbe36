"""A short causal convolution over a drafted tree: every node reads its own ancestors."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.layers.paths import Paths


def columns(path: Tensor, ancestor: Tensor, taps: int, held: int) -> Tensor:
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
    column: int64 [R, N, taps], from `columns`.
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


def window_behind(full: Tensor, held: int, paths: Paths) -> Tensor:
    """The committed window [B, C, K] behind each row's accepted path: its last K columns; unchanged for an empty path.

    full: [B, C, K + N].   held: K.
    """
    if paths.leading is not None:
        return full[..., paths.leading : paths.leading + held]
    return full.gather(2, paths.windows(held, full.device)[:, None].expand(-1, full.shape[1], -1))
