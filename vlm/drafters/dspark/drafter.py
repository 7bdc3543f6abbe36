"""DSpark's drafter: DFlash's block and a sequential head over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmspec.vlm.drafters.context_config import ContextConfig
from mmspec.vlm.drafters.context_drafter import ContextDrafter
from mmspec.vlm.drafters.dspark.modules import HEADS, ConfidenceHead, MarkovHead, PredictedAcceptance


@dataclass(frozen=True, slots=True)
class DSparkConfig(ContextConfig):
    """A ContextConfig, and: markov_rank, markov_head_type: of the correction.   confidence_head: whether acceptance is
    predicted, `confidence_with_markov`: from the token before too."""

    markov_rank: int = 256
    markov_head_type: str = "vanilla"
    confidence_head: bool = True
    confidence_with_markov: bool = True

    def __post_init__(self) -> None:
        ContextConfig.__post_init__(self)
        if self.markov_rank < 1 or self.markov_head_type not in HEADS:
            raise ValueError(f"expected markov_rank of at least 1 and markov_head_type of {', '.join(HEADS)}, got "
                             f"{self.markov_rank} and {self.markov_head_type!r}")  # fmt: skip


class DSpark(ContextDrafter):
    """Adds to a row's scores what the token before says of the next ("DSpark"), so that the law of a level is conditional; it
    is what goes on record, and every node of a tree has its own. By default the root's row drafts too.

    `stop` makes a length control of its predicted acceptance.
    """

    kind: ClassVar[str] = "dspark"
    config_class = DSparkConfig
    name = "dspark"
    independent = False
    config: DSparkConfig

    def __init__(self, config: DSparkConfig):
        super().__init__(config)
        width, drafted = config.hidden_size, config.draft_vocab_size or config.vocab_size
        self.markov_head = MarkovHead(config.markov_head_type, width, config.vocab_size, drafted, config.markov_rank)
        read = width + config.markov_rank * config.confidence_with_markov
        self.confidence_head = ConfidenceHead(read) if config.confidence_head else None

    def stop(self, threshold: float = 0.3) -> PredictedAcceptance:
        """A length control for `Chain`.   Raises ValueError for a drafter that predicts no acceptance."""
        if self.confidence_head is None:
            raise ValueError("confidence_head: expected a drafter that predicts acceptance, got one without; train one")
        return PredictedAcceptance(self.confidence_head, threshold, self.config.drafted)

    def after(self, row: Tensor, token: Tensor, before: Tensor | None) -> Tensor:
        width = self.config.hidden_size
        row = row.expand(-1, token.shape[1], -1)
        return torch.cat([row, self.markov_head.step(row, token, None if before is None else before[..., width:])], -1)

    def logits(self, out: Tensor, depth: int, unary: Tensor) -> Tensor:
        correction = self.markov_head(out[..., self.config.hidden_size :])
        return unary + (correction if self.head is None else self.head.spread(correction))

    def acceptance(self, out: Tensor) -> Tensor | None:
        return None if self.confidence_head is None else self.confidence_head(self.seen(out))[..., 0]

    def seen(self, out: Tensor) -> Tensor:
        """The row, and W1 of the token before where acceptance is predicted from it too."""
        config = self.config
        return out[..., : config.hidden_size + config.markov_rank * config.confidence_with_markov]
