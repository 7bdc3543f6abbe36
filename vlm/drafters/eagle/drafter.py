"""EAGLE-2's drafter: one decoder layer over the target's hidden states and the next tokens' embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from mmspec.vlm.drafters.feature_drafter import FeatureConfig, FeatureDrafter
from mmspec.vlm.drafters.prompt_view import PromptView
from mmspec.vlm.drafters.slots import Slots, pack


@dataclass(frozen=True, slots=True)
class EagleConfig(FeatureConfig):
    """pictures: "fused" like text ("EagleVLM" of SpecVLM), or "left_out": the drafter sees text only."""

    pictures: Literal["fused", "left_out"] = "fused"

    def __post_init__(self) -> None:
        super(EagleConfig, self).__post_init__()
        if self.pictures not in ("fused", "left_out"):
            raise ValueError(f"pictures: expected 'fused' or 'left_out', got {self.pictures!r}")


class Eagle(FeatureDrafter):
    """Drafts from features ("EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees").

    As in the public code there is no norm in front of the attention and none in front of the head. EAGLE-2 was made for
    text; the slots of pictures are fused like any other, or left out.

    Any shape is lossless under its rule: dynamic trees are deterministic picks (target-match), static trees and chains of
    sampled requests are drawn without replacement (traversal, block verification).
    """

    kind: ClassVar[str] = "eagle2"
    config_class = EagleConfig
    name = "eagle"

    def read(self, view: PromptView) -> Slots:
        if self.config.pictures == "fused":
            return FeatureDrafter.read(self, view)
        text = view.picture == 0
        keep = text if view.real is None else text & view.real
        slots = pack(view.embeds, view.hidden, keep, text)
        attend, carry = self.fuse(slots.attend, slots.carry)  # after packing, so that pictures cost nothing
        return replace(slots, attend=attend, carry=carry)
