"""MSD: text slots are fused; picture slots are the projected vision embeddings themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.pretrained import EMBEDDING, ONE_AXIS, fill_drafter
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import (
    FeatureConfig,
    FeatureDrafter,
    one_layer_names,
    one_layer_sizes,
)
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.published_files import copied_head, plain_names

_NORM = "layers.0.input_layernorm.weight"


@method(
    "msd",
    domain="vlm",
    kind="drafter",
    title="MSD",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=2,
    recommended_for=("text and pictures",),
    about="a layer over the target's hidden states; pictures as raw vision embeddings",
    paper="Speculative Decoding Reimagined for Multimodal Large Language Models",
)
class Msd(FeatureDrafter):
    """Keeps text and vision apart inside the drafter. Exact in every shape.

    Paper: "Speculative Decoding Reimagined for Multimodal Large Language Models". A text slot is fc([embedding ;
    hidden]); a picture slot is the projected vision embedding itself. All picture slots stay, for any number of
    pictures. Positions count slots on a single axis, for Qwen2-VL too.
    """

    kind: ClassVar[str] = "msd"
    config_class = FeatureConfig
    name = "msd"
    texts_first = (0.1, 0.2)
    published_as = ("MultimodalEagleDraftModel",)

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The layer norms its input for Qwen targets, like the published drafter."""
        return super().sizes_for(parts, sizes) | {"input_norm": parts.model.config.model_type.startswith("qwen")}

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """For Qwen2-VL the layer norms its input and has biased queries, keys and values; for LLaVA neither. The
        config's `model_type` decides, else the target's, else the norm in the file, which NeMo Automodel always writes.
        """
        state = plain_names(state)
        fields = one_layer_sizes(state, config, ONE_AXIS)
        model_type = config.get("model_type") or (None if target is None else target.config.model_type)
        automodel = "MultimodalEagleDraftModel" in config.get("architectures", ())
        known = model_type is not None and not automodel
        qwen = str(model_type).startswith("qwen2") if known else fields["input_norm"]
        if known:
            fields |= {"qkv_bias": config.get("qkv_bias", qwen), "input_norm": qwen}
        try:
            unused = (EMBEDDING, *copied_head(state, target))
            return fill_drafter(cls(FeatureConfig(**fields)), state, one_layer_names(fields), unused)
        except ValueError as error:
            if qwen == (_NORM in state):
                raise
            raise ValueError(
                f"{error}; model_type decides about {_NORM} and the biases, and is {model_type!r}: give the config the file "
                "was made with"
            ) from error

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipe: 40 epochs of 68k texts and 68k pictures, 2 rows x 2."""
        from mmspec.vlm.training.data import Curriculum
        from mmspec.vlm.training.recipes import feature_recipe

        return {cls.kind: feature_recipe(lr=5e-5, weight_decay=0.0, clip_by="norm", curriculum=Curriculum())}

    def read(self, view: PromptView) -> PromptSlots:
        text = view.picture == 0
        _, fused = self.fuse(view.embeds[text], view.hidden[text])  # pictures are not fused
        u = view.embeds.to(fused.dtype).masked_scatter(text[..., None], fused)
        return pack_slots(self.normed(u), u, view.real, text)
