"""MSD: text slots fused, picture slots the projected vision embeddings as they are."""

from __future__ import annotations

from typing import ClassVar

from mmspec.vlm.drafters.feature_drafter import FeatureConfig, FeatureDrafter
from mmspec.vlm.drafters.prompt_view import PromptView
from mmspec.vlm.drafters.slots import Slots, pack


class Msd(FeatureDrafter):
    """Keeps text and vision apart inside the drafter ("Speculative Decoding Reimagined for Multimodal Large Language
    Models").

    A text slot is fc([embedding ; hidden]); a picture slot is the projected vision embedding itself, with neither the
    target's state nor the fusing layer. All picture slots stay. Any number of pictures, anywhere: the public code takes
    the place of the single image sentinel and fails on two. Positions count slots on one axis, as in the public code,
    for Qwen2-VL too (where it copies them on three axes, which is the same rotation); its drafter for Qwen2-VL norms the
    layer's input (`input_norm`), the one for LLaVA does not.

    Lossless in every shape, see `Eagle`.
    """

    kind: ClassVar[str] = "msd"
    config_class = FeatureConfig
    name = "msd"

    def read(self, view: PromptView) -> Slots:
        text = view.picture == 0
        _, fused = self.fuse(view.embeds[text], view.hidden[text])  # pictures cost no fusing
        u = view.embeds.to(fused.dtype).masked_scatter(text[..., None], fused)
        return pack(self.normed(u), u, view.real, text)
