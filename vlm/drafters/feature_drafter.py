"""The skeleton of drafters that predict the target's next hidden state with one decoder layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_normed
from mmspec.vlm.drafters.prompt_view import PromptView
from mmspec.vlm.drafters.shaped import ShapedDrafter
from mmspec.vlm.drafters.slots import Slots, pack


@dataclass(frozen=True, slots=True)
class FeatureConfig:
    """Sizes of a feature drafter; hidden_size and vocab_size are the target's.

    bias: of the fusing layer.   qkv_bias: of queries, keys and values.   num_key_value_heads, head_dim: 0 for the usual.
    input_norm: whether the layer norms its input before attention (the public EAGLE-1/2, ViSpec, FLASH and MSD on LLaVA
        do not; MSD on Qwen2-VL and SpecVLM do).
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    bias: bool = True
    qkv_bias: bool = False
    input_norm: bool = False

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise ValueError(f"vocab_size: expected at least 1, got {self.vocab_size}")
        self.layer()

    def layer(self) -> LayerConfig:
        """The sizes of the decoder layer.   Raises ValueError where they do not fit together."""
        return LayerConfig.of(self)


class FeatureDrafter(ShapedDrafter):
    """Slot j sees the target's state h_j and the embedding of token j + 1, fused by one linear layer (embedding first), and
    predicts h_{j+1}; the target's own head turns that into token j + 2.

    There is no norm in front of the head. Positions are 1-D whatever the target's are. Embeddings and head are the
    target's and are not stored here. Subclasses say what of a prompt becomes a slot (`read`) and may change `fuse` and
    `logits`. Weights and settings only: a request's state is what `open` returns.
    """

    config: FeatureConfig

    def __init__(self, config: FeatureConfig):
        super().__init__(config)
        width = config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=config.bias)
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps) if config.input_norm else None
        self.layer = DraftLayer(config.layer())

    def open_without_prefill(self, target: object) -> object:
        """State of one request whose prompt is read before the first draft."""
        from mmspec.vlm.drafters.feature_state import FeatureState

        self.check(target.parts)
        return FeatureState(self, target)

    def read(self, view: PromptView) -> Slots:
        """What of a prompt becomes a slot. Here: every pair, pictures like text."""
        return pack(*self.fuse(view.embeds, view.hidden), view.real, torch.ones_like(view.picture) > 0)

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What attention reads and the residual, [B, n, H] each, from next embeddings and states [B, n, H].

        context: [B, n or 1, M], what `read` says belongs to these slots, for drafters that have something of the kind.
        """
        u = F.linear(torch.cat([embeds, hidden], -1), self.fc.weight, self.fc.bias)
        return self.normed(u), u

    def normed(self, u: Tensor) -> Tensor:
        """The layer's input as its attention reads it."""
        norm = self.norm
        return u if norm is None else rms_normed(norm, u)

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Predicted features [B, n, H] of n new slots; see `DraftLayer.forward`."""
        return self.layer(attend, carry, rotary, cache, bias)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """float32 [..., V] for the children, `depth` levels below the root, of features [..., H]."""
        return head(out).float()

    def unroll(self, slots: Slots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Predicted features [B, R - first, H] of slots first.. at each depth, as drafting computes them.

        Depth d of slot r is what a draft that started d slots earlier holds there.
        """
        origin = slots.origin[:, first:].clamp(min=0)
        embeds = view.embeds.gather(1, origin[..., None].expand(-1, -1, view.embeds.shape[-1]))
        context = None if slots.context is None else slots.context[:, first:]
        rotary = self.layer.rotary_at(slots.position, slots.attend.dtype)
        return self.layer.unroll(
            slots.attend, slots.carry, rotary, first, depths, lambda before: self.fuse(embeds, before, context)
        )
