"""SpecVLM: pictures fused like text, then made as small as the question allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.vlm.drafters.base.feature_drafter import FeatureConfig, FeatureDrafter
from mmspec.vlm.drafters.base.prompt_slots import PictureSpans, PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.specvlm.compositions import (
    BranchGate,
    ConcatenatedBranches,
    SelectedBranch,
    SingleBranch,
    WeightedBranches,
    keep_small_pictures,
)
from mmspec.vlm.drafters.specvlm.compressors import (
    Compressor,
    ConvCompressor,
    PoolCompressor,
    PruneCompressor,
    ResamplerCompressor,
    TextOnlyCompressor,
)

Branch = Literal["prune", "pool", "conv", "resampler", "text_only"]
Composition = Literal["select", "weight", "concat"] | Branch

BRANCHES: tuple[Branch, ...] = ("prune", "pool", "conv", "resampler", "text_only")
COMPOSITIONS: tuple[Composition, ...] = ("select", "weight", "concat", *BRANCHES)
_LARGEST_WEIGHTED = 5


@dataclass(frozen=True, slots=True)
class SpecVlmConfig(FeatureConfig):
    """composition: what becomes of pictures, see `SpecVlm`.

    prune_ratio, pool_ratio, conv_ratio: rows of a picture for one that stays, in "select", "concat" and alone.
    queries: rows the resampler makes of a picture.   weight_ratio: the one ratio of "weight", at most 5.
    gate_size: inner width of the gate.   gumbel_temperature: of the gate's draws in training ("select").
    """

    input_norm: bool = True
    composition: Composition = "select"
    prune_ratio: int = 20
    pool_ratio: int = 20
    conv_ratio: int = 3
    queries: int = 2
    weight_ratio: int = 3
    gate_size: int = 128
    gumbel_temperature: float = 1.0

    def __post_init__(self) -> None:
        super(SpecVlmConfig, self).__post_init__()
        if self.composition not in COMPOSITIONS:
            raise ValueError(f"composition: expected one of {', '.join(COMPOSITIONS)}, got {self.composition!r}")
        for name in ("prune_ratio", "pool_ratio", "conv_ratio", "queries", "weight_ratio", "gate_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.weight_ratio > _LARGEST_WEIGHTED:
            raise ValueError(f"weight_ratio: expected at most {_LARGEST_WEIGHTED}, got {self.weight_ratio}")
        if not self.gumbel_temperature > 0:
            raise ValueError(f"gumbel_temperature: expected more than 0, got {self.gumbel_temperature}")


class SpecVlm(FeatureDrafter):
    """EagleVLM (EAGLE-2's drafter with a norm in front of its layer, pictures fused like text) with the elastic visual
    compressor of "SpecVLM: Fast Speculative Decoding in Vision-Language Models". Not the video method of the same name
    that prunes tokens by the verifier's guidance.

    Branches, over the slots of one picture: "prune" drops rows at random, "pool" averages neighbours, "conv" convolves
    them with a stride, "resampler" is one cross-attention layer of a few learned queries, "text_only" keeps nothing.
    Compositions: "weight" mixes prune, pool and conv of one ratio by a gate on the question, "concat" puts prune, pool,
    conv and resampler one after the other, "select" lets the gate choose one branch per request, the default. EagleVLM
    itself is `Eagle` with input_norm.

    No code was public, so this follows the paper's text, and where that is silent:
    - "penultimate-layer features" are read as the vector that enters the head, as in EAGLE.
    - compressed is what the layer would read, the fused rows fc([e ; h]) of the picture.
    - pruning is random in training steps only; otherwise evenly spaced rows stay, so a request drafts the same each time.
    - compressed rows stand in the last slots of their picture, and positions count the slots that are left.
    - the gate reads the mean of the target's states over the prompt's text behind the last picture, or over all of the
      prompt's text where none is behind it. All pictures of a request get the same branch, rows of a batch each their own.
    - a picture with fewer slots than it would get rows keeps all of its slots.
    - branches differ in how many rows they make, so a soft mixture of them does not exist. In training the chosen
      branch's attention input is multiplied by its straight-through weight; in front of the norm, which forgets
      lengths, that weight would get no gradient.

    The paper distils online, on the live target's logits and features: 0.1 cross-entropy + 1.0 SmoothL1, one depth;
    AdamW (0.9, 0.95) without weight decay or warm-up.

    Lossless in every shape, see `Eagle`: the compressor only changes what is drafted.
    """

    kind: ClassVar[str] = "specvlm"
    config_class = SpecVlmConfig
    name = "specvlm"

    def __init__(self, config: SpecVlmConfig):
        super().__init__(config)
        self.elastic = _composition_of(config)

    def read(self, view: PromptView) -> PromptSlots:
        text = view.picture == 0
        keep = text if view.real is None else text & view.real
        at = keep.nonzero(as_tuple=True)
        u = view.embeds.new_zeros(*text.shape, self.config.hidden_size)
        u[at] = self._fused(torch.cat([view.embeds[at], view.hidden[at]], -1)).to(u.dtype)
        spans, weight = PictureSpans.of(view.picture), None
        if spans is not None:
            pairs = torch.cat([spans.gather(view.embeds), spans.gather(view.hidden)], -1)
            made = self.elastic(pairs, spans, question_state(view), self._fused)
            made = keep_small_pictures(made, pairs, spans, self._fused)
            row, slot, used = spans.slots(made.count, made.rows.shape[1])
            at = row.expand_as(slot)[used], slot[used]
            u[at] = made.rows[used].to(u.dtype)
            keep, weight = keep.index_put(at, torch.ones_like(used[used])), made.weight
        slots = pack_slots(u, u, keep, text)
        slots.attend = self.normed(slots.carry)
        if weight is not None:
            pictured = (slots.origin < 0)[..., None]
            slots.attend = torch.where(pictured, slots.attend * weight[:, None, None].to(u.dtype), slots.attend)
        return slots

    def _fused(self, pairs: Tensor) -> Tensor:
        return F.linear(pairs, self.fc.weight, self.fc.bias)


def question_state(view: PromptView) -> Tensor:
    """What the gate reads, float [B, H]: the mean of the states of the prompt's text behind the last picture; where
    there is none behind it, of all its text; zeros where there is none at all."""
    text = view.picture == 0
    for limit in (view.real, view.in_prompt):
        text = text if limit is None else text & limit
    behind = text & ((view.picture > 0).flip(1).cumsum(1).flip(1) == 0)
    used = torch.where(behind.any(1, keepdim=True), behind, text).to(view.hidden.dtype)
    return (used[:, None] @ view.hidden)[:, 0] / used.sum(1, keepdim=True).clamp(min=1)


def _composition_of(config: SpecVlmConfig) -> nn.Module:
    """The compressor of a config; holds only the weights its composition uses."""
    composition, width = config.composition, config.hidden_size
    if composition == "weight":
        ratio = config.weight_ratio
        return WeightedBranches(
            [PruneCompressor(ratio), PoolCompressor(ratio), ConvCompressor(width, ratio)],
            BranchGate(width, config.gate_size, 3),
        )
    if composition == "concat":
        return ConcatenatedBranches([_branch_of(config, name) for name in BRANCHES if name != "text_only"])
    if composition == "select":
        gate = BranchGate(width, config.gate_size, len(BRANCHES))
        return SelectedBranch([_branch_of(config, name) for name in BRANCHES], gate, config.gumbel_temperature)
    return SingleBranch(_branch_of(config, composition))


def _branch_of(config: SpecVlmConfig, name: Branch) -> Compressor:
    if name == "prune":
        return PruneCompressor(config.prune_ratio)
    if name == "pool":
        return PoolCompressor(config.pool_ratio)
    if name == "conv":
        return ConvCompressor(config.hidden_size, config.conv_ratio)
    if name == "resampler":
        layer = config.layer()
        return ResamplerCompressor(
            layer.hidden_size, layer.num_attention_heads, layer.dim, config.queries, layer.rms_norm_eps
        )
    return TextOnlyCompressor()
