"""Hydra: heads that also see the tokens drafted so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_normed
from mmspec.vlm.drafters.heads import Block, HeadConfig, HeadDrafter, shifted
from mmspec.vlm.drafters.hydra.modules import Entry
from mmspec.vlm.drafters.hydra.state import HydraState, PrefixState
from mmspec.vlm.drafters.prompt_view import PromptView
from mmspec.vlm.drafters.slots import Slots


@dataclass(frozen=True, slots=True)
class HydraConfig(HeadConfig):
    """prefix_layer: a decoder layer over the target's states makes the state heads start from; Hydra++ is this with
        layers=4, final_norm and, in training, dropout 0.2.
    intermediate_size .. rms_norm_eps: of that layer, see `LayerConfig`; unused without it.
    final_norm: whether what the layer makes is normed, as the published one is; without, heads read it as it is.
    dropout: share of the inputs of every block and vocabulary-wide head left out in training.
    """

    heads: int = 4
    prefix_layer: bool = False
    intermediate_size: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    final_norm: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super(HydraConfig, self).__post_init__()
        if self.prefix_layer:
            self.layer()
        elif self.final_norm:
            raise ValueError("final_norm: expected a prefix_layer to norm, got none; leave it out or ask for the layer")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected at least 0 and below 1, got {self.dropout}; change it")

    def layer(self) -> LayerConfig:
        """The sizes of the prefix layer.   Raises ValueError where they do not fit together."""
        return LayerConfig.of(self)


class Hydra(HeadDrafter):
    """Medusa made sequential ("Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding"): head i reads the prefix
    state and the embeddings of the i + 1 tokens behind it, through one residual block with a linear skip and `layers - 1`
    plain ones, then a linear map to the vocabulary with bias.

    The prefix state is the target's last one, or with `prefix_layer` (Hydra++) what one Llama layer over the target's
    states makes of it: its input is normed, and with `final_norm`, as published, its output too (a Llama model of one
    layer). Every block has weights of its own, as in the paper; the public code makes the plain ones by multiplying a
    list, so that they share one weight. The linear skip starts as the identity on the prefix state where the public code
    starts it at random; `adopt` starts the vocabulary heads from the target's as it does. Lossless in every shape, see
    `Eagle`.
    """

    kind: ClassVar[str] = "hydra"
    config_class = HydraConfig
    head_bias: ClassVar[bool] = True
    name = "hydra"
    config: HydraConfig

    def __init__(self, config: HydraConfig):
        super().__init__(config)
        width = config.hidden_size
        self.blocks = nn.ModuleList(
            nn.Sequential(Entry(i + 2, width), *(Block(width) for _ in range(config.layers - 1)))
            for i in range(config.heads)
        )
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps) if config.prefix_layer else None
        self.layer = DraftLayer(config.layer()) if config.prefix_layer else None
        self.final_norm = nn.RMSNorm(width, eps=config.rms_norm_eps) if config.final_norm else None

    def open_without_prefill(self, target: object) -> object:
        self.check(target.parts)
        return (HydraState if self.layer is None else PrefixState)(self, target)

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The states [B, n, H] as the prefix layer's attention reads them, and as they are."""
        norm = self.norm
        return hidden if norm is None else rms_normed(norm, hidden), hidden

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: object, bias: Tensor | None) -> Tensor:
        """Prefix states [B, n, H] of n new slots; see `DraftLayer.forward`."""
        return self._finished(self.layer(attend, carry, rotary, cache, bias))

    def feature(self, index: int, states: Tensor, embeds: Tensor) -> Tensor:
        """What head `index` makes, [B, n, H], of the prefix states [B, n, H] a draft starts from and the embeddings of the
        tokens behind them, root first, side by side: [B, n, (index + 1) * H]."""
        x = torch.cat([states, embeds], -1)
        for block in self.blocks[index]:
            x = block(self._dropped(x))
        return x

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        return super().logits(self._dropped(out) if self.config.own_head else out, depth, head)

    def _finished(self, states: Tensor) -> Tensor:
        return states if self.final_norm is None else rms_normed(self.final_norm, states)

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout) if self.training and self.config.dropout else x

    def unroll(self, slots: Slots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """What each depth's head makes, [B, R - first, H] of slots first.., of the prefix state `depth` slots before and the
        embeddings from there on."""
        states = slots.carry[:, first:]
        if self.layer is not None:
            rotary = self.layer.rotary_at(slots.position, slots.attend.dtype)
            states = self._finished(self.layer.unroll(slots.attend, slots.carry, rotary, first, 1, None)[0])
        origin = slots.origin[:, first:].clamp(min=0)
        embeds = view.embeds.gather(1, origin[..., None].expand(-1, -1, view.embeds.shape[-1]))
        outputs = []
        for depth in range(min(depths, self.config.heads)):
            path = torch.cat([shifted(embeds, back) for back in range(depth, -1, -1)], -1)
            outputs.append(self.feature(depth, shifted(states, depth), path))
        return outputs
