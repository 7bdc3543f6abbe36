"""EAGLE-2: one decoder layer over the target's hidden states, with pictures fused like text or left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.pretrained import EMBEDDING, ONE_AXIS, PLAIN, fill_drafter
from mmspec.methods import method
from mmspec.vlm.drafters.base.feature_drafter import (
    FeatureConfig,
    FeatureDrafter,
    one_layer_names,
    one_layer_sizes,
)
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.published_files import copied_head, plain_names


@dataclass(frozen=True, slots=True)
class EagleConfig(FeatureConfig):
    """With "fused", pictures are like text, as in SpecVLM's "EagleVLM"; with "left_out" the drafter sees text only."""

    pictures: Literal["fused", "left_out"] = "fused"


@method(
    "eagle",
    domain="vlm",
    kind="drafter",
    title="EAGLE",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=1,
    about="a layer over the target's hidden states; pictures fused like text",
    paper="EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
)
class Eagle(FeatureDrafter):
    """EAGLE-2: a decoder layer predicts the target's next hidden state.

    Paper: "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees". No norm stands in front of the
    attention or the head, as in the public code. The slots of pictures are fused like text, or left out. Exact in every
    shape. Dynamic trees are deterministic and verified by matching the target. Static trees and chains of sampled
    requests are drawn without replacement, for traversal or block verification.
    """

    kind: ClassVar[str] = "eagle2"
    config_class = EagleConfig
    name = "eagle"
    variants = {"eagle2_text": {"pictures": "left_out"}}
    published_as = ("LlamaEagleDraftModel", "LlamaForCausalLMEagle", "EagleLlamaForCausalLM")

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """See `PretrainedDrafter.from_published`; the file's embedding is the target's own and is not kept."""
        state = plain_names(state)
        one_axis = "LlamaEagleDraftModel" in config.get("architectures", ())
        fields = one_layer_sizes(state, config, ONE_AXIS if one_axis else PLAIN)
        unused = (EMBEDDING, *copied_head(state, target))
        return fill_drafter(cls(cls.config_class(**fields)), state, one_layer_names(fields), unused)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return EAGLE-1's recipe: 20 epochs of 68k conversations."""
        from mmspec.vlm.training.recipes import feature_recipe

        return dict.fromkeys((cls.kind, *cls.variants), feature_recipe())

    def read(self, view: PromptView) -> PromptSlots:
        if self.config.pictures == "fused":
            return FeatureDrafter.read(self, view)
        text = view.picture == 0
        keep = text if view.real is None else text & view.real
        slots = pack_slots(view.embeds, view.hidden, keep, text)
        attend, carry = self.fuse(slots.attend, slots.carry)  # fusing after packing skips pictures
        return replace(slots, attend=attend, carry=carry)
