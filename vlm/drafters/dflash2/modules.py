"""What DFlash2 adds to DFlash: convolutions along the block with kernels of its own for each row, and a selector of paths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.drafting.layer import LayerConfig, rms_normed
from mmspec.vlm.drafters.context_layer import ContextLayer

BEFORE, AFTER = 0, 1  # sides of a sublayer


class BlockConvolution(nn.Module):
    """Mixes each row of a block with the rows before it, channel by channel, on both sides of a sublayer.

    Row i becomes sum_t (base[side, t] + delta_i[side, t]) x_{i-t}, where delta is projected from the sublayer's input and
    shared by groups of channels; before the block's start there are zeros. A new one changes nothing.

    base_kernel: [2 sides, taps, width].   block: rows of a block.
    """

    def __init__(self, width: int, taps: int, group: int, block: int):
        super().__init__()
        self.taps, self.group, self.block = taps, group, block
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, width))
        self.kernel_projection = nn.Linear(width, 2 * taps * width // group, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1
            self.kernel_projection.weight.zero_()

    def kernels(self, normed: Tensor) -> Tensor:
        """[B, n, 2 sides, taps, width] of a sublayer's input [B, n, width]."""
        delta = F.linear(normed, self.kernel_projection.weight).unflatten(-1, (2, self.taps, -1))
        return self.base_kernel + delta.repeat_interleave(self.group, -1)

    def forward(self, rows: Tensor, kernels: Tensor, side: int) -> Tensor:
        """Rows [B, n, width] of one block after the other, convolved.   kernels: of `kernels`."""
        kernel, blocks = kernels[:, :, side], rows.unflatten(1, (-1, self.block))
        mixed = kernel[:, :, 0] * rows
        for tap in range(1, self.taps):
            earlier = F.pad(blocks, (0, 0, tap, 0))[:, :, : self.block].flatten(1, 2)
            mixed = mixed + kernel[:, :, tap] * earlier
        return mixed


class ConvolvedLayer(ContextLayer):
    """A context layer whose sublayers stand between the sides of a convolution; context is not convolved."""

    def __init__(self, config: LayerConfig, taps: int, group: int, block: int):
        super().__init__(config)
        self.attention_conv = BlockConvolution(config.hidden_size, taps, group, block)
        self.mlp_conv = BlockConvolution(config.hidden_size, taps, group, block)

    def forward(self, rows: Tensor, rotary: Tensor, cache: SlotCache, index: int, bias: Tensor | None) -> Tensor:
        normed = rms_normed(self.input_norm, rows)
        conv, kernels = self.attention_conv, self.attention_conv.kernels(normed)
        added = self.attended(conv(normed, kernels, BEFORE), rotary, cache, index, bias)
        rows = rows + conv(added, kernels, AFTER)
        normed = rms_normed(self.norm, rows)
        conv, kernels = self.mlp_conv, self.mlp_conv.kernels(normed)
        return rows + conv(self.mixed(conv(normed, kernels, BEFORE)), kernels, AFTER)


class PathSelector(nn.Module):
    """Scores an edge from token a to candidate b of row y: <A[a] * (W y), B[b]>, beside what the head says of b.

    predecessor_codebook (A), successor_codebook (B): [vocab, rank].
    """

    def __init__(self, width: int, vocab: int, rank: int):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab, rank))
        self.successor_codebook = nn.Parameter(torch.randn(vocab, rank) * rank**-0.5)
        self.hidden_projection = nn.Linear(width, rank, bias=False)

    def query(self, row: Tensor, token: Tensor) -> Tensor:
        """[B, n, rank] of a row [B, 1, width] behind tokens int64 [B, n]."""
        return self.predecessor_codebook[token] * F.linear(row, self.hidden_projection.weight)

    def edges(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[B, n, K] from `query` [B, n, rank] to candidates int64 [B, K]."""
        return query @ self.successor_codebook[candidate].transpose(1, 2)
