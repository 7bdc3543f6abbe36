"""P-EAGLE's drafter: one pass over the pairs that were accepted and a mask for each further depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.drafting.layer import LayerConfig
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length import FixedLength
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
from mmspec.vlm.drafters.peagle.modules import NormedLayer


@dataclass(frozen=True, slots=True)
class PEagleConfig(Eagle3Config):
    """An Eagle3Config, and: mask_token_id: whose own embedding stands for a token not drafted yet.   num_hidden_layers: the
    first is EAGLE-3's.   depths: tokens of a draft."""

    mask_token_id: int = 0
    num_hidden_layers: int = 4
    depths: int = 7

    def __post_init__(self) -> None:
        Eagle3Config.__post_init__(self)
        if min(self.num_hidden_layers, self.depths) < 1 or not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError("expected num_hidden_layers and depths of at least 1 and mask_token_id below vocab_size, got "
                             f"{self}")  # fmt: skip


class PEagle(Eagle3):
    """Drafts all depths in one pass ("P-EAGLE: Parallel-Drafting EAGLE with Scalable Training"). Depth 1 is EAGLE-3's: the
    pair of the target's states and the token behind them. Each further depth reads the embedding of a mask token and one
    learned state in the place of the pair, stands one position further and sees all pairs and the masks before it. No depth
    knows what another one drew, so laws are marginals, as DFlash's, and drafts take the same forms.

    Its embedding is its own: it was trained.
    """

    kind: ClassVar[str] = "peagle"
    config_class = PEagleConfig
    name = "p-eagle"
    trainable: ClassVar[bool] = False
    config: PEagleConfig

    def __init__(self, config: PEagleConfig):
        super().__init__(config)
        width = config.hidden_size
        self.rest = nn.ModuleList(NormedLayer(LayerConfig.of(config)) for _ in range(config.num_hidden_layers - 1))
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, len(config.levels) * width))
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        block = FixedLength(config.depths)
        self.shapes = (Chain(block), Chain(block, "deterministic"))

    @property
    def most_levels(self) -> int:
        return self.config.depths

    def open_without_prefill(self, target: object) -> object:
        from mmspec.vlm.drafters.peagle.state import ParallelState

        self.check(target.parts)
        return ParallelState(self, target)

    def masks(self, batch: int, count: int) -> tuple[Tensor, Tensor]:
        """What `count` masks are read as: embeddings [B, count, H] and states [B, count, levels * H]."""
        embed = self.embed_tokens.weight[self.config.mask_token_id].expand(batch, count, -1)
        return embed, self.mask_hidden.to(embed.dtype).expand(batch, count, -1)

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Outputs [B, n, H] of n new slots through all layers, see `DraftLayer.forward`."""
        causal = bias is None and attend.shape[1] > 1
        for index, layer in enumerate((self.layer, *self.rest)):
            query, key, value = layer.heads(attend, rotary)
            keys, values = cache.write(index, key, value)
            attend = carry = layer.finish(carry, layer.attention(query, keys, values, bias, causal))
        return carry
