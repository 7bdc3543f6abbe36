"""DFlash2's drafter: blocks whose rows are mixed by convolutions, and whose tokens are picked along a path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmspec.vlm.drafters.context_config import ContextConfig
from mmspec.vlm.drafters.context_drafter import ContextDrafter
from mmspec.vlm.drafters.dflash2.modules import ConvolvedLayer, PathSelector


@dataclass(frozen=True, slots=True)
class DFlash2Config(ContextConfig):
    """A ContextConfig, and: conv_taps: rows a convolution mixes.   conv_group: channels that share a kernel.
    selector_rank: width of the codebooks.   selector_top: candidates of each row."""

    conv_taps: int = 2
    conv_group: int = 16
    selector_rank: int = 256
    selector_top: int = 16

    def __post_init__(self) -> None:
        # a dataclass with slots is made anew, so that `super` without arguments would mean another class
        ContextConfig.__post_init__(self)
        if min(self.conv_taps, self.conv_group, self.selector_rank, self.selector_top) < 1:
            raise ValueError(
                f"expected conv_taps, conv_group, selector_rank and selector_top of at least 1, got {self}"
            )
        if self.hidden_size % self.conv_group:
            raise ValueError(f"conv_group: expected a divisor of hidden_size {self.hidden_size}, got {self.conv_group}")
        if self.selector_top > self.vocab_size:
            raise ValueError(f"selector_top: expected at most vocab_size {self.vocab_size}, got {self.selector_top}")
        if self.draft_vocab_size:
            raise ValueError(f"draft_vocab_size: expected 0, codebooks have every token, got {self.draft_vocab_size}")


class DFlash2(ContextDrafter):
    """Walks through each row's best tokens: a token's score is what the head says of it and an edge from the token before
    (z-lab's DFlash2, as vLLM runs it). The law of a level is the softmax over its candidates, given the token before; it is
    what goes on record, so that drawn walks are exact, and trees have a law for each node.
    """

    kind: ClassVar[str] = "dflash2"
    config_class = DFlash2Config
    name = "dflash2"
    independent = False
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

    def logits(self, out: Tensor, depth: int, unary: Tensor) -> Tensor:
        """-inf for all but the candidates."""
        best, candidate = unary[:, 0].topk(self.config.selector_top, -1)
        edges = self.candidate_selector.edges(out[..., self.config.hidden_size :], candidate)
        scores = unary.new_full((*out.shape[:2], unary.shape[-1]), -torch.inf)
        return scores.scatter(-1, candidate[:, None].expand_as(edges), best[:, None] + edges.float())
