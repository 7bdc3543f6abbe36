"""Base of drafters made of heads on the target's last state (Medusa, Hydra), and the state of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.draft import Draft, Evidence, Verdict, gather_nodes
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction, ShapedDrafter


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes; hidden_size and vocab_size are the target's.

    heads: levels a draft can have.   layers: residual blocks of a head.
    own_head: every head has a vocabulary-wide head of its own, as published; without, it predicts a state that the
        target's frozen head reads, which is far smaller.
    """

    hidden_size: int
    vocab_size: int
    heads: int = 3
    layers: int = 1
    own_head: bool = True

    def __post_init__(self) -> None:
        if min(self.hidden_size, self.vocab_size, self.heads, self.layers) < 1:
            raise ValueError(f"expected hidden_size, vocab_size, heads and layers of at least 1, got {self}")


class HeadBlock(nn.Module):
    """x + SiLU(Wx + b) on [..., H]; W starts at 0."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(F.linear(x, self.linear.weight, self.linear.bias))


class HeadDrafter(ShapedDrafter):
    """Base of drafters whose head i (from 0) predicts depth i from the target's state behind the token before the root.

    Slot j holds the target's state h_j and the embedding of token j + 1; its head i predicts token j + i + 2.
    Chains and dynamic trees are cut to `heads` levels; a deeper static tree is refused.

    head_bias: of the vocabulary-wide heads.   layer: a decoder layer over the target's states, None without one.
    """

    config: HeadConfig
    steps = ("heads", 0, 0)
    head_bias: ClassVar[bool] = False
    predicts_states: ClassVar[bool] = False

    def __init__(self, config: HeadConfig):
        super().__init__(config)
        self.trained_depth = self.own_depths = config.heads
        own = config.heads if config.own_head else 0
        self.heads = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=self.head_bias) for _ in range(own)
        )
        self.layer: nn.Module | None = None
        greedy, sampled = self.shapes
        self.shapes = greedy.cut(config.heads), sampled.cut(config.heads)

    @property
    def from_ids(self) -> bool:
        """See `Drafter`: without a layer over them, nothing of a prompt's states is kept."""
        return self.layer is None

    def start_from(self, parts: Parts) -> Self:
        """Start the vocabulary-wide heads from the target's own, as Hydra's training does; return the drafter itself."""
        for head in self.heads:
            head.weight.data.copy_(parts.head.weight)
            if head.bias is not None:
                nn.init.zeros_(head.bias) if parts.head.bias is None else head.bias.data.copy_(parts.head.bias)
        return self

    def new_state(self, target: object) -> HeadState:
        return HeadState(self, target)

    def read(self, view: PromptView) -> PromptSlots:
        """Every pair of a prompt, pictures like text."""
        return pack_slots(*self.fuse(view.embeds, view.hidden), view.real, view.picture >= 0)

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What a layer's attention reads and its residual, [B, n, H] each; here both are the states, and no layer reads."""
        return hidden, hidden

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """float32 [..., V] for the children, `depth` levels below the root, of what its head made, [..., H]."""
        return (self.heads[depth - 1] if self.config.own_head else head)(out).float()

    def prediction(
        self, out: Tensor, depth: int, parts: Parts, teacher: Tensor, token: Tensor, truth: Tensor
    ) -> DraftPrediction:
        """See `ShapedDrafter.prediction`; heads with a vocabulary of their own predict no state."""
        whole = super().prediction(out, depth, parts, teacher, token, truth)
        return DraftPrediction(whole.student, teacher, token, depth) if self.config.own_head else whole


class HeadState(FeatureState):
    """Keeps the target's state a draft starts from, behind the token before the root; no cache, so a prompt costs nothing.

    source: float [B, 1, H], that state.   root: float [B, H], what the first head makes of it; None until `ready`.
    passes: evaluations of the heads: one a draft, since none of them looks at drafted tokens.
    """

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.source: Tensor | None = None

    def prefill(self) -> None:
        """Nothing to read: the state behind the prompt comes with the first pass."""

    def follow(self, target: object) -> Self:
        self.serve(target)
        return self

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Notes the target's state at the last accepted node."""
        self.source, self.root = gather_nodes(evidence.hidden, verdict.node[:, None]), None

    @torch.no_grad()
    def ready(self, depth: int | None = None) -> None:
        """Brings `root` up to date."""
        if self.root is None:
            self.passes += 1
            self.root = self.drafter.feature(0, self.source)[:, 0]

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """What the next head makes, [B, n, H], the same for all nodes of the level; see `PairState.expand`."""
        return self.drafter.feature(depth, self.source).expand(-1, token.shape[1], -1)
