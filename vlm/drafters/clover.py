"""Clover: a recurrent head that folds each drafted token into its state by cross-attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import rms_norm
from mmspec.core.drafting.request_shape import shape_of
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.head_drafter import HeadBlock
from mmspec.vlm.drafters.base.prefix_heads import PrefixConfig, PrefixHeadDrafter, PrefixState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, shift_rows
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction


@dataclass(frozen=True, slots=True)
class CloverConfig(PrefixConfig):
    """The sizes of Clover: its augmenting block is the prefix layer; by default all levels share the target's head."""

    prefix_layer: bool = True
    own_head: bool = False
    cell: Literal["attention", "recurrent"] = "attention"  # of a token into the state; Clover-2 is "recurrent"


class TokenFold(nn.Module):
    """Cross-attention from a state to a token and to the state itself, s + Attn(s, {Proj(e), s}), then a norm."""

    def __init__(self, width: int, heads: int, eps: float):
        super().__init__()
        self.heads = heads
        self.token = nn.Linear(width, width, bias=False)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.RMSNorm(width, eps=eps)

    def forward(self, state: Tensor, embed: Tensor) -> Tensor:
        """Return the next state [..., H] of a state and the embedding of the token behind it, [..., H] each."""
        pair = torch.stack([self.token(embed), state], -2)  # [..., 2, H]
        query, key, value = (
            part.unflatten(-1, (self.heads, -1))
            for part in (self.query(state)[..., None, :], self.key(pair), self.value(pair))
        )
        weight = ((query * key).sum(-1) * key.shape[-1] ** -0.5).softmax(-2)  # [..., 2, heads]
        read = (weight[..., None] * value).sum(-3).flatten(-2)
        return rms_norm(self.norm, state + self.out(read))


class TokenCell(nn.Module):
    """A gated recurrent cell, norm(s + SiLU(A [e; s]) * B [e; s]), of 4 H^2 weights; `TokenFold` has 5 H^2."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.gate_up = nn.Linear(2 * width, 2 * width, bias=False)
        self.norm = nn.RMSNorm(width, eps=eps)

    def forward(self, state: Tensor, embed: Tensor) -> Tensor:
        gate, up = small_linear(torch.cat([embed, state], -1), self.gate_up.weight).chunk(2, -1)
        return rms_norm(self.norm, state + F.silu(gate) * up)


@method(
    "clover",
    domain="vlm",
    kind="drafter",
    title="Clover",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=12,
    about="a recurrent head that folds each drafted token into its state",
    paper="Clover: Regressive Lightweight Speculative Decoding with Sequential Knowledge",
)
class Clover(PrefixHeadDrafter):
    """A recurrent head whose weights all depths share. Exact in every shape.

    Paper: "Clover: Regressive Lightweight Speculative Decoding with Sequential Knowledge" (arXiv 2405.00263). A draft
    starts from the augmenting block's state, a decoder layer over the target's states. Every token behind it is folded
    into the state, and the target's head reads the state through residual blocks. Clover-2 (arXiv 2408.00264) is the kind
    "clover2": a recurrent cell in place of the attention, and distillation of the target's states too. Its cell and the
    weights of its loss are ours.
    """

    kind: ClassVar[str] = "clover"
    config_class = CloverConfig
    name = "clover"
    variants = {"clover2": {"cell": "recurrent"}}
    config: CloverConfig

    def __init__(self, config: CloverConfig):
        super().__init__(config)
        width, heads = config.hidden_size, config.num_attention_heads or 1
        if width % heads:
            raise ValueError(f"num_attention_heads: expected a divisor of hidden_size {width}, got {heads}; change it")
        eps = config.rms_norm_eps
        self.fold = TokenFold(width, heads, eps) if config.cell == "attention" else TokenCell(width, eps)
        self.output = nn.Sequential(*(HeadBlock(width) for _ in range(config.layers)))

    @property
    def predicts_states(self) -> bool:
        """Whether training compares the states that the head reads, as Clover-2's does."""
        return self.config.cell == "recurrent"

    def prediction(
        self, out: Tensor, depth: int, parts: Parts, teacher: Tensor, token: Tensor, truth: Tensor
    ) -> DraftPrediction:
        """See `ShapedDrafter.prediction`; the predicted states are those that the head reads."""
        whole = super().prediction(out, depth, parts, teacher, token, truth)
        return replace(whole, feature=self.output(out), truth=truth) if self.predicts_states else whole

    def new_state(self, target: object) -> CloverState:
        return CloverState(self, target)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        return super().logits(self.output(out), depth, head)

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Return each depth's state [B, R - first, H], which started from the augmented state `depth` slots earlier."""
        state, embeds, outputs = self.prefix_states(slots, first), view.embeds_of(slots, first), []
        for depth in range(min(depths, self.config.heads)):
            state = self.fold(state if depth == 0 else shift_rows(state, 1), embeds)
            outputs.append(state)
        return outputs

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return Medusa's recipe with the papers' losses: the text, or the target's distributions and states."""
        from mmspec.vlm.training.recipes import head_recipe

        return {cls.kind: head_recipe(), "clover2": head_recipe("cross_entropy,smooth_l1")}


class CloverState(PrefixState):
    """The state of a request; the head's state at a node is the node's feature, so nothing else is kept."""

    def begin(self) -> Tensor:
        return self.drafter.fold(self.source, self.target.parts.embed(self.target.pending[:, None]))

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        self.passes += 1
        return self.drafter.fold(hidden, self.target.parts.embed(token))
