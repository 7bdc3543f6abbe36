"""DFlash2: a block from a single pass, with rows mixed by convolutions, and a path through each row's best tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import LayerConfig, rms_norm
from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.round.cache import SlotCache
from mmspec.io.pretrained import fill_drafter
from mmspec.io.validation import Size
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.base.block_layers import BlockDrafterConfig, BlockLayer
from mmspec.vlm.drafters.dflash import UNUSED_TENSORS, published_block, single_value, tensor_names

BEFORE, AFTER = 0, 1  # sides of a sublayer


class BlockConvolution(nn.Module):
    """Mixes each row of a block with the `taps` - 1 rows before it, channel by channel, on both sides of a sublayer.
    Row i becomes sum_t (base[side, t] + delta_i[side, t]) x_{i-t}, base of [2 sides, taps, width], zeros before the
    start. The sublayer's input is projected to delta, which `group` channels share. A new convolution changes nothing.
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
        """Return the kernels [B, n, 2 sides, taps, width] of a sublayer's input [B, n, width]."""
        delta = small_linear(normed, self.kernel_projection.weight).unflatten(-1, (2, self.taps, -1))
        return self.base_kernel + delta.repeat_interleave(self.group, -1)

    def forward(self, rows: Tensor, kernels: Tensor, side: int) -> Tensor:
        """Return the convolved rows [B, n, width] of consecutive blocks, with the kernels of `kernels`."""
        kernel, blocks = kernels[:, :, side], rows.unflatten(1, (-1, self.block))
        mixed = kernel[:, :, 0] * rows
        for tap in range(1, self.taps):
            earlier = F.pad(blocks, (0, 0, tap, 0))[:, :, : self.block].flatten(1, 2)
            mixed = mixed + kernel[:, :, tap] * earlier
        return mixed


class ConvolvedLayer(BlockLayer):
    """A block layer with a convolution before and after each sublayer; the context is not convolved."""

    def __init__(self, config: LayerConfig, taps: int, group: int, block: int):
        super().__init__(config)
        self.attention_conv = BlockConvolution(config.hidden_size, taps, group, block)
        self.mlp_conv = BlockConvolution(config.hidden_size, taps, group, block)

    def forward(self, rows: Tensor, rotary: Tensor, cache: SlotCache, index: int, bias: Tensor | None) -> Tensor:
        normed = rms_norm(self.input_norm, rows)
        conv, kernels = self.attention_conv, self.attention_conv.kernels(normed)
        added = self.attended(conv(normed, kernels, BEFORE), rotary, cache, index, bias)
        rows = rows + conv(added, kernels, AFTER)
        normed = rms_norm(self.norm, rows)
        conv, kernels = self.mlp_conv, self.mlp_conv.kernels(normed)
        return rows + conv(self.mixed(conv(normed, kernels, BEFORE)), kernels, AFTER)


class PathSelector(nn.Module):
    """Scores an edge from token a to candidate b of row y as <A[a] * (W y), B[b]>; the head's score of b is added. The
    codebooks A and B, of predecessors and successors, are [vocab, rank]."""

    def __init__(self, width: int, vocab: int, rank: int):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab, rank))
        self.successor_codebook = nn.Parameter(torch.randn(vocab, rank) * rank**-0.5)
        self.hidden_projection = nn.Linear(width, rank, bias=False)

    def query(self, row: Tensor, token: Tensor) -> Tensor:
        """Return the queries [B, n, rank] of a row [B, 1, width] behind tokens int64 [B, n]."""
        return self.predecessor_codebook[token] * small_linear(row, self.hidden_projection.weight)

    def edges(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return the scores [B, n, K] of edges from `query` [B, n, rank] to candidates int64 [B, K]."""
        return query @ self.successor_codebook[candidate].transpose(1, 2)


@dataclass(frozen=True, slots=True)
class DFlash2Config(BlockDrafterConfig):
    conv_taps: Size = 2  # the rows that a convolution mixes
    conv_group: Size = 16  # the channels that share a kernel
    selector_rank: Size = 256  # the width of the codebooks
    selector_top: Size = 16  # the candidates of each row

    def __post_init__(self) -> None:
        # a dataclass with slots replaces its class, so `super()` without arguments would mean the old class
        BlockDrafterConfig.__post_init__(self)
        if self.hidden_size % self.conv_group:
            raise ValueError(f"conv_group: expected a divisor of hidden_size {self.hidden_size}, got {self.conv_group}")
        if self.selector_top > self.vocab_size:
            raise ValueError(f"selector_top: expected at most vocab_size {self.vocab_size}, got {self.selector_top}")
        if self.draft_vocab_size:
            raise ValueError(f"draft_vocab_size: expected 0, codebooks have every token, got {self.draft_vocab_size}")


@method(
    "dflash2",
    domain="vlm",
    kind="drafter",
    title="DFlash 2",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=9,
    about="a path through the likeliest tokens of a block",
)
class DFlash2(BlockDrafter):
    """Follows a path through each row's best tokens (z-lab's DFlash2, as vLLM runs it). Exact in every shape.

    A token's score is the head's score plus that of an edge from the token before. A level's distribution is the
    softmax over its candidates given the token before, so every node of a tree has its own distribution.
    """

    kind: ClassVar[str] = "dflash2"
    config_class = DFlash2Config
    name = "dflash2"
    independent = False
    published_as = ("DFlash2DraftModel", "Qwen3DFlash2DraftModel", "speculators:dflash2")
    writers: ClassVar[Mapping[str, str]] = {"vllm": "mmspec.vlm.export.blocks:dflash2_speculators"}
    trainable: ClassVar[bool] = False
    config: DFlash2Config

    def __init__(self, config: DFlash2Config):
        super().__init__(config)
        self.candidate_selector = PathSelector(config.hidden_size, config.vocab_size, config.selector_rank)

    def new_layer(self) -> ConvolvedLayer:
        config = self.config
        return ConvolvedLayer(config.layer(), config.conv_taps, config.conv_group, config.block_size)

    def after(self, row: Tensor, token: Tensor, before: Tensor | None) -> Tensor:
        return torch.cat([row.expand(-1, token.shape[1], -1), self.candidate_selector.query(row, token)], -1)

    def logits(self, out: Tensor, unary: Tensor) -> Tensor:
        """See `BlockDrafter.logits`; tokens other than the candidates get minus infinity."""
        best, candidate = unary[:, 0].topk(self.config.selector_top, -1)
        edges = self.candidate_selector.edges(out[..., self.config.hidden_size :], candidate)
        scores = unary.new_full((*out.shape[:2], unary.shape[-1]), -torch.inf)
        return scores.scatter(-1, candidate[:, None].expand_as(edges), best[:, None] + edges.float())

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Return the drafter of a published checkpoint. The sizes of the convolutions and the selector stand in
        `dflash_config` or at the top of the config. Rows see the same tokens as in DFlash. In files of `speculators`,
        rows of sliding layers see all of the block unless `sliding_window_non_causal` is false."""
        own = config.get("dflash_config", {})
        if "transformer_layer_config" in config:
            config = {"sliding_window_non_causal": True} | config
        sizes = {name: single_value(config, own, theirs) for name, theirs in _FIELDS.items()}
        state, fields = published_block(state, config, target)
        drafter = cls(DFlash2Config(**fields, **sizes))
        return fill_drafter(drafter, state, _names(drafter, state), UNUSED_TENSORS)


_FIELDS = {"conv_taps": "conv_kernel_size", "conv_group": "conv_group_size", "selector_rank": "selector_rank",
           "selector_top": "selector_top_k"}  # fmt: skip
_SELECTOR = ("predecessor_codebook", "successor_codebook", "hidden_projection.weight")
_CONV = ("base_kernel", "kernel_projection.weight")


def _names(drafter: DFlash2, state: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    layers = drafter.config.num_hidden_layers
    same = [f"candidate_selector.{name}" for name in _SELECTOR]
    same += [f"layers.{n}.{side}_conv.{name}" for n in range(layers) for side in ("attention", "mlp") for name in _CONV]
    return tensor_names(state, drafter.config) | {name: (name,) for name in same}
