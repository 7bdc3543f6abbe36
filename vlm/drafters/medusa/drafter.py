"""Medusa: independent heads on the target's last state, one for each depth."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from mmspec.vlm.drafters.heads import Block, HeadConfig, HeadDrafter, shifted
from mmspec.vlm.drafters.prompt_view import PromptView
from mmspec.vlm.drafters.slots import Slots


class Medusa(HeadDrafter):
    """Predicts each depth from the target's state alone ("Medusa: Simple LLM Inference Acceleration Framework with Multiple
    Decoding Heads"): residual blocks x + SiLU(Wx + b), then a linear map to the vocabulary without bias.

    Every block has weights of its own, as in the paper; the public code makes them by multiplying a list, so that the
    blocks of a head share one weight when it has several. Defaults are its recipe's, 3 heads of 1 block (its class
    defaults to 5). Drafts are judged by the exact rules and so lossless in every shape, see `Eagle`; the paper's typical
    acceptance is the relaxed `TypicalAcceptance`.
    """

    kind: ClassVar[str] = "medusa"
    config_class = HeadConfig
    name = "medusa"

    def __init__(self, config: HeadConfig):
        super().__init__(config)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(Block(config.hidden_size) for _ in range(config.layers))) for _ in range(config.heads)
        )

    def feature(self, index: int, states: Tensor) -> Tensor:
        """What head `index` makes of states [..., H], the same shape."""
        return self.blocks[index](states)

    def unroll(self, slots: Slots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """What each depth's head makes, [B, R - first, H] of slots first.., of the state `depth` slots before."""
        states = slots.carry[:, first:]
        return [shifted(self.feature(depth, states), depth) for depth in range(min(depths, self.config.heads))]
