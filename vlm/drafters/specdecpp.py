"""SpecDec++: a head on the drafter's state predicts acceptance and ends drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.layers.fingerprint import module_like
from mmspec.io.pretrained import fill_drafter
from mmspec.io.validation import Count, Share, Size, check_fields
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import MethodParts, method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter, require_fields, weights_of


@dataclass(frozen=True, slots=True)
class AcceptanceConfig:
    hidden_size: Size  # width of the drafter's state
    num_layers: Count = 3  # residual blocks

    __post_init__ = check_fields


class AcceptanceHead(PretrainedDrafter):
    """Blocks x + SiLU(W x + b), then two logits, reject and accept.

    Paper: "SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths". The head reads the drafter's last
    hidden state at a draft token and predicts the acceptance of that token. It is saved and loaded like a drafter but
    drafts nothing. Each block has its own weights; published files, whose blocks share their weights, load without
    conversion.
    """

    kind: ClassVar[str] = "specdecpp"
    config_class = AcceptanceConfig
    name = "specdecpp"
    config: AcceptanceConfig

    def __init__(self, config: AcceptanceConfig):
        super().__init__(config)
        width = config.hidden_size
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(config.num_layers))
        self.judge = nn.Linear(width, 2)
        for block in self.blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)

    def forward(self, feature: Tensor) -> Tensor:
        """Return the float32 logits [..., 2] of reject and accept, from states [..., H]."""
        x = feature
        for block in self.blocks:
            x = x + F.silu(small_linear(x, block.weight, block.bias))
        return small_linear(x, self.judge.weight, self.judge.bias).float()

    def accepts(self, feature: Tensor) -> Tensor:
        """Return the probability that the last token read is accepted, float32 [...], from states [..., H]."""
        return self(feature).softmax(-1)[..., 1]

    def check(self, parts: Parts) -> None:
        if self.config.hidden_size != parts.hidden_size:
            raise ValueError(
                f"head: expected hidden_size {parts.hidden_size} as in the target, got "
                f"{self.config.hidden_size}; train a head for this drafter"
            )

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """The file holds one block num_layers times; each copy becomes a block here."""
        width, layers = require_fields(config, "hidden_size", "num_layers")
        names = {f"judge.{x}": (f"model.{layers}.{x}",) for x in ("weight", "bias")}
        for layer in range(layers):
            names |= {f"blocks.{layer}.{x}": (f"model.{layer}.linear.{x}",) for x in ("weight", "bias")}
        return fill_drafter(cls(AcceptanceConfig(width, layers)), state, names, unused=())


@method(
    "specdecpp",
    domain="vlm",
    kind="controller",
    title="SpecDec++",
    exact=True,
    needs=("weights",),
    order=2,
    about="a head on the drafter's state ends a draft where a rejection is likely",
    paper="SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths",
    **AcceptanceHead.method_facts(),
)
@dataclass(frozen=True, slots=True)
class AcceptanceStop:
    """Ends a row's draft where a rejection is likelier than `threshold`: 1 - prod P(accept) > threshold.

    Exact: it reads tokens that are already drawn and never changes the distribution of the next token.

    Args:
        head: The head, trained for the drafter that uses this control.
        threshold: The probability of a rejection that ends a draft.
        shortest: The fewest tokens of a draft.
        longest: The most tokens of a draft.
        newest: Whether the last drawn token counts, which ends drafts a token sooner than the public code.

    Raises:
        ValueError: The threshold is no probability, or the bounds are out of order.
    """

    head: AcceptanceHead
    threshold: Share = 0.3
    shortest: Size = 2
    longest: int = 20
    newest: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.shortest > self.longest:
            raise ValueError(f"shortest: expected 1 <= shortest <= longest, got {self.shortest} and {self.longest}")

    @classmethod
    def make(cls, settings: dict[str, Any], parts: MethodParts) -> Self:
        """Return the control of an available head."""
        return cls(weights_of(AcceptanceHead, parts), **settings)

    def begin(self) -> AcceptanceGrowth:
        return AcceptanceGrowth(self)


class AcceptanceGrowth:
    """`survival`, float32 [B], is the probability that all assessed tokens are accepted."""

    def __init__(self, control: AcceptanceStop):
        self.control = control
        self.survival: Tensor | None = None
        self.head = control.head

    @torch.no_grad()
    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        control = self.control
        if feature is None:
            raise ValueError(
                "head: expected a drafter that provides its hidden state, got none; use ConfidenceStop with it"
            )
        if self.survival is None:
            self.survival = torch.ones_like(confidence, dtype=torch.float32)
            self.head = module_like(control.head, feature)
        before = self.survival
        if step:
            self.survival = before * self.head.accepts(feature)
        if step >= control.longest:
            return confidence < 0
        if step < control.shortest:
            return confidence >= 0
        return 1 - (self.survival if control.newest else before) <= control.threshold
