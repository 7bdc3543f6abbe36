"""Base of heads that read the tokens drafted before them, with or without a decoder layer over the target's states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_norm
from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.head_drafter import HeadConfig, HeadDrafter, HeadState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots


@dataclass(frozen=True, slots=True)
class PrefixConfig(HeadConfig):
    """The sizes of heads and of their prefix layer, see `LayerConfig`."""

    heads: int = 4
    prefix_layer: bool = False  # whether heads start from a decoder layer's output over the target's states
    intermediate_size: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    final_norm: bool = False  # whether the layer's output is normed

    def __post_init__(self) -> None:
        super(PrefixConfig, self).__post_init__()
        if self.prefix_layer:
            self.layer()
        elif self.final_norm:
            raise ValueError("final_norm: expected a prefix_layer to norm, got none; leave it out or ask for the layer")

    def layer(self) -> LayerConfig:
        return LayerConfig.of(self)


class PrefixHeadDrafter(HeadDrafter):
    """Base of heads that start from a prefix state: the target's last state, or the prefix layer's output over all.
    `norm` is that of the layer's attention input, and `final_norm` that of its output; None without them."""

    config: PrefixConfig

    def __init__(self, config: PrefixConfig):
        super().__init__(config)
        width = config.hidden_size
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps) if config.prefix_layer else None
        self.layer = DraftLayer(config.layer()) if config.prefix_layer else None
        self.final_norm = nn.RMSNorm(width, eps=config.rms_norm_eps) if config.final_norm else None

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """See `PretrainedDrafter.sizes_for`; a prefix layer has a final norm, as published."""
        defaults = {field.name: field.default for field in fields(cls.config_class)}
        return super().sizes_for(parts, sizes) | {"final_norm": bool((defaults | dict(sizes))["prefix_layer"])}

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the prefix layer's attention input and its residual, the states themselves, [B, n, H] each."""
        norm = self.norm
        return hidden if norm is None else rms_norm(norm, hidden), hidden

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: object, bias: Tensor | None) -> Tensor:
        return self._finished(self.layer(attend, carry, rotary, cache, bias))

    def prefix_states(self, slots: PromptSlots, first: int) -> Tensor:
        """Return the prefix states [B, R - first, H] of the slots from `first` on, in training."""
        if self.layer is None:
            return slots.carry[:, first:]
        rotary = self.layer.rotary_at(slots.position, slots.attend.dtype)
        return self._finished(self.layer.unroll(slots.attend, slots.carry, rotary, first, 1, None)[0])

    def _finished(self, states: Tensor) -> Tensor:
        return states if self.final_norm is None else rms_norm(self.final_norm, states)


class PrefixState(HeadState):
    """The state of a request. With a prefix layer, it has a cache over the prompt and starts from the layer's last
    output. `passes` counts the evaluations of a head, one per level, and the passes of the layer."""

    def prefill(self) -> None:
        if self.drafter.layer is not None:
            FeatureState.prefill(self)

    def follow(self, target: object) -> Self:
        return (HeadState if self.drafter.layer is None else FeatureState).follow(self, target)

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        base = HeadState if self.drafter.layer is None else FeatureState
        base.observe(self, target, draft, evidence, verdict)

    @torch.no_grad()
    def ready(self, depth: int | None = None) -> None:
        if self.drafter.layer is not None and (self.next_position is None or self.pending_features):
            FeatureState.ready(self, depth)
            self.source, self.root = self.root[:, None], None
        if self.root is None:
            self.passes += 1
            self.root = self.begin()[:, 0]

    def begin(self) -> Tensor:
        """Return the features [B, 1, H] that depth 1 is drawn from, behind the pending token."""
        raise TypeError(f"{type(self).__name__} must define begin")


def at_paths(rows: Tensor, ancestor: Tensor, depth: int) -> Tensor:
    """Return the rows on the paths of a level's nodes, in order, [B, n, ahead + depth, H], of [B, ahead + drafted, H],
    whose first `ahead` are on every path. `ancestor`, bool [R, n, drafted], has `depth` True columns a row, by level.
    """
    ahead = rows.shape[1] - ancestor.shape[-1]
    place = ancestor.byte().argsort(dim=-1, descending=True, stable=True)[..., :depth] + ahead
    start = torch.arange(ahead, device=rows.device).expand(*place.shape[:2], -1)
    node = torch.cat([start, place], -1).expand(len(rows), -1, -1)
    return rows[torch.arange(len(rows), device=rows.device)[:, None, None], node]
