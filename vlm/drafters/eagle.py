"""EAGLE-2's drafter: one decoder layer over the target's hidden states and the next tokens' embeddings."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.pretrained import PretrainedDrafter
from mmspec.vlm.drafters.shapes import DynamicTree, Shape, StaticTree


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Sizes of the drafter; hidden_size and vocab_size are the target's. bias: of the fusing layer."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    bias: bool = True

    def __post_init__(self) -> None:
        sizes = (self.hidden_size, self.intermediate_size, self.num_attention_heads, self.vocab_size)
        if min(sizes) < 1 or self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(f"expected positive sizes and hidden_size a multiple of 2 * heads, got {self}")


class Eagle(PretrainedDrafter):
    """Drafts from features ("EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees").

    Slot j sees the target's hidden state h_j and the embedding of token j + 1, fused by one linear layer (embedding first),
    and predicts h_{j+1}; the target's own head turns that into token j + 2. As in the public code there is no norm in front
    of the attention and none in front of the head. Positions are 1-D whatever the target's are. Embeddings and head are
    the target's and are not stored here.

    Any shape is lossless under its rule: dynamic trees are deterministic picks (target-match), static trees and chains of
    sampled requests are drawn without replacement (traversal, block verification).
    """

    kind: ClassVar[str] = "eagle2"
    config_class = EagleConfig
    name = "eagle"

    def __init__(self, config: EagleConfig):
        super().__init__(config)
        width, inner = config.hidden_size, config.intermediate_size
        self.fc = nn.Linear(2 * width, width, bias=config.bias)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.shapes: tuple[Shape, Shape] = (DynamicTree(), StaticTree())

    def with_shape(self, shape: Shape, sampled: Shape | None = None) -> Eagle:
        """The same weights drafting in another shape; `sampled` where sampled requests should get one of their own.

        Without this, greedy requests get a dynamic tree and sampled ones a static tree drawn without replacement.
        """
        other = copy.copy(self)
        other.shapes = (shape, sampled or shape)
        return other

    def shape_for(self, greedy: bool) -> Shape:
        """The shape a request gets."""
        return self.shapes[0 if greedy else 1]

    def check(self, parts: Parts) -> None:
        """Raises ValueError when the drafter was made for another target."""
        for field, own, theirs in (
            ("hidden_size", self.config.hidden_size, parts.hidden_size),
            ("vocab_size", self.config.vocab_size, parts.vocab_size),
        ):
            if own != theirs:
                raise ValueError(
                    f"drafter: expected {field} {theirs} as in the target, got {own}; train one for this target"
                )

    def open(self, target: object) -> object:
        """State of one request over a TextTarget."""
        from mmspec.vlm.drafters.eagle_state import EagleState

        self.check(target.parts)
        return EagleState(self, target)

    def rotary(self, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """cos and signed sin of positions 0..count-1, [count, 2, head_dim], for `heads`."""
        half = self.config.hidden_size // self.config.num_attention_heads // 2
        frequency = self.config.rope_theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
        angle = torch.arange(count, device=device, dtype=torch.float32)[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1).to(dtype)

    def heads(self, u: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, [B, heads, n, head_dim] each.

        u: fused inputs [B, n, H].   rotary: rows of `rotary()` at their positions, [B or 1, n, 2, head_dim].
        """
        batch, count, width = u.shape
        number = self.config.num_attention_heads
        qkv = F.linear(u, self.qkv.weight).view(batch, count, 3, number, width // number)
        qk, cos, sin = qkv[:, :, :2], rotary[:, :, :1, None], rotary[:, :, 1:, None]
        # rotary embedding in the half-split layout: the sign of the swapped halves is in the table
        qk = torch.addcmul(qk * cos, qk.roll(width // number // 2, -1), sin).transpose(1, 3)
        return qk[:, :, 0], qk[:, :, 1], qkv[:, :, 2].transpose(1, 2)

    def finish(self, u: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [B, n, H] from its input and the attended values [B, heads, n, head_dim]."""
        # a step is a few small products, so functions are called on the weights: a module call costs as much as one
        u = u + F.linear(attended.transpose(1, 2).reshape(u.shape), self.out.weight)
        normed = F.rms_norm(u, self.norm.normalized_shape, self.norm.weight, self.norm.eps)
        gate, up = F.linear(normed, self.gate_up.weight).chunk(2, -1)
        return u + F.linear(F.silu(gate) * up, self.down.weight)

    def fuse(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """The layer's inputs [B, n, H] from next embeddings and hidden states [B, n, H] each."""
        return F.linear(torch.cat([embeds, hidden], -1), self.fc.weight, self.fc.bias)

    def forward(self, embeds: Tensor, hidden: Tensor, rotary: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Predicted features [B, n, H] of n new slots, whose keys and values go to `cache`.

        embeds, hidden: [B, n, H].   rotary: [B or 1, n, 2, head_dim].   bias: additive [B or 1, 1, n, slots]. Without
        one, a single slot attends all before it, and more slots attend causally over an empty cache.
        """
        u = self.fuse(embeds, hidden)
        q, k, v = self.heads(u, rotary)
        keys, values = cache.write(0, k, v)
        causal = bias is None and u.shape[1] > 1
        return self.finish(u, F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, is_causal=causal))
