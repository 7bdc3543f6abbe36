"""Base of drafters made of heads on the target's last state (Medusa, Hydra)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.shapes import sampled_tree
from mmspec.core.round.draft import Draft, Evidence, Verdict, gather_nodes
from mmspec.io.validation import Size, check_fields
from mmspec.kernels.small_linear import small_linear
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction, ShapedDrafter


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The sizes of a drafter of heads. With `own_head`, as published, every head has its own vocabulary-wide output
    layer. Otherwise a head predicts a state that the target's frozen head reads, which is far smaller."""

    hidden_size: Size  # the target's
    vocab_size: Size  # the target's
    heads: Size = 3  # the most levels of a draft
    layers: Size = 1  # the residual blocks of a head
    own_head: bool = True

    __post_init__ = check_fields


class HeadBlock(nn.Module):
    """A residual block x + SiLU(Wx + b) on [..., H]; W starts at 0."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(small_linear(x, self.linear.weight, self.linear.bias))


class HeadDrafter(ShapedDrafter):
    """Base of drafters whose head i (from 0) predicts depth i from the target's state behind the token before the root.
    Slot j holds the target's state h_j and the embedding of token j + 1; its head i predicts token j + i + 2. Chains
    and dynamic trees are cut to `heads` levels; a deeper static tree is refused. `layer` is a decoder layer over the
    target's states, None for drafters without it."""

    config: HeadConfig
    steps = ("heads", 0, 0)
    head_bias: ClassVar[bool] = False  # of the vocabulary-wide heads
    predicts_states: ClassVar[bool] = False

    def __init__(self, config: HeadConfig):
        super().__init__(config)
        self.trained_depth = self.own_depths = config.heads
        own = config.heads if config.own_head else 0
        self.heads = nn.ModuleList(
            nn.Linear(config.hidden_size, config.vocab_size, bias=self.head_bias) for _ in range(own)
        )
        self.layer: nn.Module | None = None
        self.shapes = self.shapes[0].cut(config.heads), sampled_tree(config.heads)

    @property
    def from_ids(self) -> bool:
        """Whether the drafter needs no states of the prompt, which holds without a layer; see `Drafter`."""
        return self.layer is None

    def start_from(self, parts: Parts) -> Self:
        """Copy the target's head into the vocabulary-wide heads, as in Hydra's training."""
        for head in self.heads:
            head.weight.data.copy_(parts.head.weight)
            if head.bias is not None:
                nn.init.zeros_(head.bias) if parts.head.bias is None else head.bias.data.copy_(parts.head.bias)
        return self

    def new_state(self, target: object) -> HeadState:
        return HeadState(self, target)

    def read(self, view: PromptView) -> PromptSlots:
        return pack_slots(*self.fuse(view.embeds, view.hidden), view.real, view.picture >= 0)

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the states twice, [B, n, H] each, which no layer reads here."""
        return hidden, hidden

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return the float32 logits [..., V] of tokens `depth` levels below the root, from its head's [..., H]."""
        return (self.heads[depth - 1] if self.config.own_head else head)(out).float()

    def prediction(
        self, out: Tensor, depth: int, parts: Parts, teacher: Tensor, token: Tensor, truth: Tensor
    ) -> DraftPrediction:
        """See `ShapedDrafter.prediction`; heads with their own output layer predict no state."""
        whole = super().prediction(out, depth, parts, teacher, token, truth)
        return DraftPrediction(whole.student, teacher, token, depth) if self.config.own_head else whole


class HeadState(FeatureState):
    """The target's state behind the token before the root, `source`, [B, 1, H], which a draft starts from, without a
    cache. `root`, [B, H], is the first head's output, None until `ready`. `passes` counts an evaluation of the heads a
    draft."""

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.source: Tensor | None = None

    def prefill(self) -> None:
        """Do nothing: the state behind the prompt comes with the first pass."""

    def follow(self, target: object) -> Self:
        self.serve(target)
        return self

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.learn_length(draft, verdict)
        self.source, self.root = gather_nodes(evidence.hidden, verdict.node[:, None]), None

    @torch.no_grad()
    def ready(self, depth: int | None = None) -> None:
        if self.root is None:
            self.passes += 1
            self.root = self.drafter.feature(0, self.source)[:, 0]

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return the next head's output [B, n, H], the same for all nodes of the level; see `PairState.expand`."""
        return self.drafter.feature(depth, self.source).expand(-1, token.shape[1], -1)
