"""C2T: a small network that leaves out drafted nodes of a tree which are unlikely to be accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.layers.fingerprint import module_like
from mmspec.io.validation import Share, Size, check_fields
from mmspec.methods import MethodParts, method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter, weights_of

FEATURES = 3  # see `NodeFilter.keeps`


@dataclass(frozen=True, slots=True)
class NodeScoreConfig:
    hidden_size: Size = 8  # hidden units

    __post_init__ = check_fields


class NodeScore(PretrainedDrafter):
    """The logit of a node's acceptance from its chance, its parent's entropy, and its depth; it drafts nothing. Paper:
    "C2T: A Classifier-Based Tree Construction Method in Speculative Decoding". Picked nodes of greedy requests and
    drawn nodes of sampled requests have a network of two layers each, since the chance of a picked node counts its own
    value. No input depends on the target's sizes, so a network may serve several targets of a family."""

    kind: ClassVar[str] = "c2t"
    config_class = NodeScoreConfig
    name = "c2t"
    config: NodeScoreConfig

    def __init__(self, config: NodeScoreConfig):
        super().__init__(config)
        width = config.hidden_size
        self.picked, self.drawn = (
            nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, 1)) for _ in range(2)
        )
        for name in ("picked", "drawn"):  # mean and spread of the inputs
            self.register_buffer(f"{name}_mean", torch.zeros(FEATURES))
            self.register_buffer(f"{name}_scale", torch.ones(FEATURES))

    def forward(self, features: Tensor, drawn: bool) -> Tensor:
        """Return the float32 logits [...] of acceptance from float32 [..., 3], see `NodeFilter.keeps`."""
        name = "drawn" if drawn else "picked"
        mean, scale = getattr(self, f"{name}_mean"), getattr(self, f"{name}_scale")
        network = self.drawn if drawn else self.picked
        return network((features.to(mean.dtype) - mean) / scale)[..., 0].float()

    def check(self, parts: Parts) -> None:
        """Accept every target, as no input depends on its sizes."""


@method(
    "c2t",
    domain="vlm",
    kind="controller",
    title="C2T",
    exact=True,
    needs=("weights",),
    order=5,
    about="a small network leaves out drafted nodes of a tree that are unlikely to be accepted",
    paper="C2T: A Classifier-Based Tree Construction Method in Speculative Decoding",
    **NodeScore.method_facts(),
)
@dataclass(frozen=True, slots=True)
class LikelyNodes:
    """The filter of a `BestFirst` tree that keeps nodes with a predicted acceptance of at least `least`. Exact.

    Whether a node is drawn is decided before its value is known. `train_node_score` trains the network on verified
    drafts with balanced classes, so a prediction is no calibrated probability.

    Args:
        least: The prediction that a node needs; 0 keeps every node.

    Raises:
        ValueError: The prediction is no probability.
    """

    network: NodeScore
    least: Share = 0.3

    __post_init__ = check_fields

    @classmethod
    def make(cls, settings: dict[str, Any], parts: MethodParts) -> Self:
        """Return the filter of an available network."""
        return cls(weights_of(NodeScore, parts), **settings)

    @torch.no_grad()
    def keeps(self, features: Tensor, drawn: bool) -> Tensor:
        return module_like(self.network, features)(features, drawn).sigmoid() >= self.least
