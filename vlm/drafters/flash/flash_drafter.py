"""FLASH: pictures pooled into a few latent rows, k tokens drafted per pass, and its published files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.round.cache import SlotCache
from mmspec.io.pretrained import EMBEDDING, ONE_AXIS, drafter_sizes, fill_drafter
from mmspec.io.validation import Count, Size
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureConfig, FeatureDrafter, FeatureState, one_layer_names
from mmspec.vlm.drafters.base.picture_pooling import LatentPool, pool_pictures
from mmspec.vlm.drafters.base.prompt_slots import PictureSpans, PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.flash.blocks import FlashState, unroll_blocks
from mmspec.vlm.drafters.flash.head import SarConfig, SarHead


@dataclass(frozen=True, slots=True)
class FlashConfig(FeatureConfig):
    """The sizes of a FLASH drafter. With "sar", intermediate_size is the width inside the expansion, publicly 4 *
    hidden_size, and num_key_value_heads the number of groups, 0 for the public 4. qkv_bias and rms_norm_eps have no
    effect."""

    latents: Count = 64  # the rows that a picture is pooled into; 0 pools nothing and fuses pictures like text
    block: Size = 5  # the features that a pass of "sar" predicts; 1 for "ar"
    head: Literal["sar", "ar"] = "sar"  # the semi-autoregressive head or a Llama layer
    residual: bool = False  # of "sar", see `SarConfig`

    def __post_init__(self) -> None:
        super(FlashConfig, self).__post_init__()
        if self.head == "ar" and self.block != 1:
            raise ValueError(f"block: expected 1 with head 'ar', got {self.block}; use head 'sar' for more")

    def sar(self) -> SarConfig:
        return SarConfig(
            width=self.hidden_size,
            inner=self.intermediate_size,
            heads=self.num_attention_heads,
            groups=self.num_key_value_heads or 4,
            dim=self.head_dim or self.hidden_size // self.num_attention_heads,
            offsets=self.block,
            rope_theta=self.rope_theta,
            residual=self.residual,
        )


@method(
    "flash",
    domain="vlm",
    kind="drafter",
    title="FLASH",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=4,
    about="several tokens a pass over compressed pictures",
    paper="FLASH: Latent-Aware Semi-Autoregressive Speculative Decoding for Multimodal Tasks",
)
class Flash(FeatureDrafter):
    """Drafts from pooled pictures, k tokens per pass. Exact in every shape.

    Paper: "FLASH: Latent-Aware Semi-Autoregressive Speculative Decoding for Multimodal Tasks". Learned queries pool the
    states of a picture into `latents` rows that take its place. Text before the first picture enters as the target's
    states, all other text as fused pairs. Offset i of the head at slot j predicts the state behind token j + 1 + i.
    docs/concepts/drafters.md lists the differences from the paper and the public code.
    """

    kind: ClassVar[str] = "flash"
    config_class = FlashConfig
    name, steps = "flash", ("block", 1, 2)
    config: FlashConfig

    def __init__(self, config: FlashConfig):
        super().__init__(config)
        self.block = self.own_depths = config.block  # the last map of the expansion has its own rows for each offset
        self.pool = LatentPool(config.latents, config.hidden_size) if config.latents else None
        if config.head == "sar":
            self.layer = SarHead(config.sar())

    def with_block(self, block: int) -> Self:
        """Return a drafter with the same weights that drafts with the first `block` offsets, at most config.block."""
        if not 1 <= block <= self.config.block:
            raise ValueError(f"block: expected 1 to {self.config.block}, the offsets of this drafter, got {block}")
        other = copy.copy(self)
        other.block = block
        return other

    def new_state(self, target: object) -> FeatureState:
        return (FeatureState if self.config.head == "ar" else FlashState)(self, target)

    def read(self, view: PromptView) -> PromptSlots:
        spans = PictureSpans.of(view.picture) if self.pool is not None else None
        if spans is None:
            return FeatureDrafter.read(self, view)
        text = view.picture == 0
        before = (view.last_picture == 0) & ~text.all(1, keepdim=True) & (not view.shown)
        fused = text & ~before
        _, states = self.fuse(view.embeds[fused], view.hidden[fused])  # pictures are not fused
        rows = view.hidden.to(states.dtype).masked_scatter(fused[..., None], states)
        keep = torch.ones_like(text) if view.real is None else view.real.clone()
        rows = pool_pictures(self.pool, self.config.latents, rows, keep, view.hidden, spans)
        return pack_slots(self.normed(rows), rows, keep, fused)

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Return the predicted features [B, n, H] of n new slots; with "sar", the input of `layer.expansion`."""
        if self.config.head == "ar":
            return FeatureDrafter.forward(self, attend, carry, rotary, cache, bias)
        return self.layer(attend, carry, rotary, cache, bias)

    def offset(self, out: Tensor, depth: int) -> Tensor:
        """Return features [..., H] unchanged, or of blocks [..., k * H] offset (depth - 1) % k, with `depth` from 1."""
        width = self.config.hidden_size
        if out.shape[-1] == width:
            return out
        at = (depth - 1) % self.block * width
        return out[..., at : at + width]

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return the float32 logits [..., V] at `depth` levels below the root, from features or blocks."""
        return head(self.offset(out, depth)).float()

    def unroll(
        self, slots: PromptSlots, view: PromptView, first: int, depths: int, reveal: Tensor | None = None
    ) -> list[Tensor]:
        """Return the features [B, R - first, H] at each depth, see `unroll_blocks`. `reveal`, bool [B, S], only for
        "sar", are the view's pairs that drafts read with the target's states instead of their own."""
        if self.config.head == "ar":
            if reveal is not None:
                raise ValueError("reveal: expected a drafter of blocks, got head 'ar'; train it without glancing")
            return FeatureDrafter.unroll(self, slots, view, first, depths)
        revealed = None if reveal is None else reveal.gather(1, slots.origin[:, first:].clamp(min=0))
        return unroll_blocks(self, slots, view.embeds_of(slots, first), first, depths, revealed)

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        own = super().sizes_for(parts, sizes)
        if sizes.get("head", "sar") == "sar":
            return own | {"intermediate_size": 4 * parts.hidden_size, "num_key_value_heads": 0}
        return own | {"block": 1}

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Return the drafter of a published checkpoint. A name with "ar_proj" means the semi-autoregressive drafter
        (its head, fc, A), otherwise the autoregressive drafter (a Llama layer "layers.0." and fc). The config gives
        "k", 5 where absent. The query matrix A gives the number of latents; without A nothing is pooled. A head without
        fc passes the target's state on. As in the public classes, the rotary base is 10000, and the Llama layer has no
        biases of queries, keys and values, whatever the config says."""
        fields = drafter_sizes(config, ONE_AXIS) | {"rope_theta": 10000.0, "qkv_bias": False}
        state = dict(state)
        width = fields["hidden_size"]
        fields["latents"] = state["A"].shape[0] if "A" in state else 0
        if any("ar_proj." in name for name in state):
            state = {name.removeprefix(PREFIX): value for name, value in state.items()}
            fields |= {"intermediate_size": 4 * width, "num_key_value_heads": 0, "block": config.get("k", 5)}
            names = (
                {f"fc.{x}": (f"fc.{x}",) for x in ("weight", "bias")}
                if fields["bias"]
                else {"fc.weight": ("fc.weight",)}
            )
            names |= {
                f"{own}.{x}": tuple(f"{name}.{x}" for name in group)
                for own, group in _HEAD.items()
                for x in ("weight", "bias")
            }
            if "fc.weight" not in state:
                state["fc.weight"] = torch.cat([torch.zeros(width, width), torch.eye(width)], 1)
                state["fc.bias"] = torch.zeros(width)
                fields["bias"] = True
        else:
            fields |= {"head": "ar", "block": 1}
            names = one_layer_names(fields)
        if fields["latents"]:
            names["pool.latents"] = ("A",)
        return fill_drafter(cls(FlashConfig(**fields)), state, names, (EMBEDDING, FREQUENCIES))

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipe: a single block of 5 offsets; 20 epochs of 50k, batch 2."""
        from mmspec.vlm.training.recipes import feature_recipe

        return {cls.kind: feature_recipe(depth_decay=1.0, over_depths="mean")}

    def prescribed(self, recipe: Any) -> Any:
        """See `PretrainedDrafter.prescribed`; every block length is trained, with glancing."""
        from mmspec.vlm.training.objective_wrappers import Glancing, RandomBlockLength

        deep = replace(recipe.objective, depths=self.config.block + 2)
        return replace(recipe, objective=RandomBlockLength(Glancing(deep)))


PREFIX, FREQUENCIES = "layers.", "rotary_emb.inv_freq"
_HEAD = {
    "layer.qkv": ("q_proj", "k_proj", "v_proj"),
    "layer.out": ("o_proj",),
    "layer.up": ("ar_proj.0",),
    "layer.down": ("ar_proj.2",),
}
