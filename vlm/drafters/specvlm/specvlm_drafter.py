"""SpecVLM: pictures are fused like text, then compressed as far as the question allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.validation import Positive, Range, Size
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
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
    """The sizes of a SpecVLM drafter. The ratios of prune, pool and conv are rows per compressed row, in "select",
    "concat" and alone."""

    input_norm: bool = True
    composition: Composition = "select"  # see `SpecVlm`
    prune_ratio: Size = 20
    pool_ratio: Size = 20
    conv_ratio: Size = 3
    queries: Size = 2  # the rows that the resampler returns for a picture
    weight_ratio: Annotated[int, Range(1, _LARGEST_WEIGHTED)] = 3  # the common ratio of "weight", at most 5
    gate_size: Size = 128  # the inner width of the gate
    gumbel_temperature: Positive = 1.0  # of the gate's draws in training ("select")


@method(
    "specvlm",
    domain="vlm",
    kind="drafter",
    title="SpecVLM",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=5,
    about="a layer over the target's hidden states; pictures compressed in a learned way",
    paper="SpecVLM: Fast Speculative Decoding in Vision-Language Models",
)
class SpecVlm(FeatureDrafter):
    """EAGLE-2's drafter with a norm in front of its layer and an elastic compressor of pictures. Exact in every shape.

    Paper: "SpecVLM: Fast Speculative Decoding in Vision-Language Models". The branches work on the slots of a picture:
    "prune" drops rows, "pool" averages neighbours, "conv" convolves them, "resampler" reads them with learned queries,
    and "text_only" keeps none. There are three compositions. "weight" mixes prune, pool and conv by a gate on the
    question, "concat" joins all but text_only, and "select" lets the gate choose a branch per request.
    """

    kind: ClassVar[str] = "specvlm"
    config_class = SpecVlmConfig
    name = "specvlm"

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipe: 1 epoch of at least 655k, batch 128, rate 8e-5 (5e-5 for 13B), no warm-up. The
        paper does not state decay and clipping."""
        from mmspec.vlm.training.recipes import depth_recipe

        return {cls.kind: depth_recipe("smooth_l1,cross_entropy:0.1", lr=8e-5, decay="none", clip=0.0, answers="given")}

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
            compressed = self.elastic(pairs, spans, question_state(view), self._fused)
            compressed = keep_small_pictures(compressed, pairs, spans, self._fused)
            row, slot, used = spans.slots(compressed.count, compressed.rows.shape[1])
            at = row.expand_as(slot)[used], slot[used]
            u[at] = compressed.rows[used].to(u.dtype)
            keep, weight = keep.index_put(at, torch.ones_like(used[used])), compressed.weight
        slots = pack_slots(u, u, keep, text)
        slots.attend = self.normed(slots.carry)
        if weight is not None:
            pictured = (slots.origin < 0)[..., None]
            slots.attend = torch.where(pictured, slots.attend * weight[:, None, None].to(u.dtype), slots.attend)
        return slots

    def _fused(self, pairs: Tensor) -> Tensor:
        return small_linear(pairs, self.fc.weight, self.fc.bias)


def question_state(view: PromptView) -> Tensor:
    """Return the mean state [B, H] of the prompt's text behind the last picture, which the gate reads. Where no text
    follows the picture, it is the mean of all text; without text, it is zero."""
    text = view.picture == 0
    for limit in (view.real, view.in_prompt):
        text = text if limit is None else text & limit
    behind = text & ((view.picture > 0).flip(1).cumsum(1).flip(1) == 0)
    used = torch.where(behind.any(1, keepdim=True), behind, text).to(view.hidden.dtype)
    return (used[:, None] @ view.hidden)[:, 0] / used.sum(1, keepdim=True).clamp(min=1)


def _composition_of(config: SpecVlmConfig) -> nn.Module:
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
