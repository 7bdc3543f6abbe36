"""ViSpec: a picture becomes a row or two in the drafter's sequence, and a vector in all text behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import LayerConfig
from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.pretrained import EMBEDDING, ONE_AXIS, fill_drafter
from mmspec.io.validation import Range
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import (
    FeatureConfig,
    FeatureDrafter,
    one_layer_names,
    one_layer_sizes,
)
from mmspec.vlm.drafters.base.picture_pooling import absorbed_attention
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter
from mmspec.vlm.drafters.base.prompt_slots import PictureSpans, PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.published_files import copied_head, plain_names
from mmspec.vlm.drafters.eagle import Eagle


class VisionAdaptor(nn.Module):
    """A bidirectional attention of learned queries q [num_q, heads, head_dim] over the projected embeddings of a
    picture. It has no norm, feed-forward part, residual or positions. Keys and values have a bias where the layer's
    have; the output has none. Every query head has its own keys, whatever the layer's grouping."""

    def __init__(self, layer: LayerConfig, num_q: int):
        super().__init__()
        heads, dim, width = layer.num_attention_heads, layer.dim, layer.hidden_size
        self.q = nn.Parameter(torch.randn(num_q, heads, dim) * dim**-0.5)
        self.k_proj = nn.Linear(width, heads * dim, bias=layer.qkv_bias)
        self.v_proj = nn.Linear(width, heads * dim, bias=layer.qkv_bias)
        self.o_proj = nn.Linear(heads * dim, width, bias=False)

    def forward(self, pictures: Tensor, there: Tensor | None = None) -> Tensor:
        """Return the outputs of the queries, float [K, num_q, H], from pictures [K, N, H]. `there`, bool [K, N], has
        the rows that belong to the picture, at least 1; None for all."""
        attended = absorbed_attention(self.q, pictures, pictures, self.k_proj.weight, self.v_proj, there)
        return self.o_proj(attended)


@dataclass(frozen=True, slots=True)
class ViSpecConfig(FeatureConfig):
    num_q: Annotated[int, Range(2)] = 2  # queries of a picture: the last gives the global vector, each other a row


@method(
    "vispec",
    domain="vlm",
    kind="drafter",
    title="ViSpec",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=3,
    about="a layer over the target's hidden states; one compressed row and one global vector a picture",
    paper="ViSpec: Accelerating Vision-Language Models with Vision-Aware Speculative Decoding",
)
class ViSpec(FeatureDrafter):
    """Compresses a picture into a few rows and a global vector. Exact in every shape.

    Paper: "ViSpec: Accelerating Vision-Language Models with Vision-Aware Speculative Decoding". Learned queries read
    the projected embeddings of a picture. Their first num_q - 1 outputs take the last slots of the picture, unfused.
    The last output is the picture's global vector g. Text is fc([e ; h']) with h' = W [h ; g] + b, where g belongs to
    the last picture before it, and is zero before the first. docs/concepts/drafters.md lists the differences from the
    public code.
    """

    kind: ClassVar[str] = "vispec"
    config_class = ViSpecConfig
    name = "vispec"
    texts_first = (0.1, 0.1)
    published_as = ("VispecDraftModel",)
    config: ViSpecConfig

    def __init__(self, config: ViSpecConfig):
        super().__init__(config)
        width = config.hidden_size
        self.adaptor = VisionAdaptor(config.layer(), config.num_q)
        self.inject = nn.Linear(2 * width, width, bias=config.bias)
        nn.init.eye_(self.inject.weight)
        if config.bias:
            nn.init.zeros_(self.inject.bias)

    @classmethod
    def from_stage1(cls, eagle: Eagle, num_q: int = 2) -> Self:
        """Return the start of the second stage: a drafter trained on text, with a new adaptor and no injection yet."""
        fields = asdict(eagle.config)
        del fields["pictures"]
        drafter = cls(ViSpecConfig(**fields, num_q=num_q))
        drafter.load_state_dict(eagle.state_dict(), strict=False)
        return drafter.to(eagle.fc.weight)

    def read(self, view: PromptView) -> PromptSlots:
        """Return the text slots, and for every picture its compressed rows in the last of its slots."""
        text = view.picture == 0
        keep, embeds = text, view.embeds
        spans = PictureSpans.of(view.picture)
        vectors = embeds.new_zeros(embeds.shape[0], 1, embeds.shape[2])  # per row and picture number, 0 for none
        if spans is not None:
            out = self.adaptor(spans.gather(embeds), spans.there).to(embeds.dtype)
            rows = out[:, :-1]
            row, slot, used = spans.slots(spans.length.clamp(max=rows.shape[1]), rows.shape[1])
            at = row.expand_as(slot)[used], slot[used]
            embeds = embeds.index_put(at, rows[used])
            keep = text.index_put(at, torch.ones_like(used[used]))
            vectors = F.pad(vectors, (0, 0, 0, int(spans.number.max())))
            vectors = vectors.index_put((spans.row, spans.number), out[:, -1])
        if view.real is not None:
            keep = keep & view.real
        # fusing after packing skips the slots of pictures
        slots = pack_slots(embeds, view.hidden, keep, text, position=view.position)
        seen = small_linear(vectors, self.inject.weight[:, self.config.hidden_size :], self.inject.bias)
        if view.context is not None:
            seen = torch.cat([view.context[:, None], seen[:, 1:]], 1)
        return self._fused(slots, view.last_picture, seen)

    def _fused(self, slots: PromptSlots, last_picture: Tensor, seen: Tensor) -> PromptSlots:
        """Fuse the packed pairs with contexts float [B, pictures + 1, H]; compressed rows stay unchanged."""
        fused = slots.origin >= 0
        shown = F.pad(last_picture, (1, 0))  # the front column is read where a prompt has no slots
        row = torch.arange(len(seen), device=seen.device)
        context = seen[row[:, None], shown.gather(1, slots.origin + 1)]
        _, u = self.fuse(slots.attend, slots.carry, context)
        u = torch.where(fused[..., None], u, slots.attend)
        return replace(slots, attend=self.normed(u), carry=u, context=context, last_context=seen[row, shown[:, -1]])

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Add the picture's context W_g g + b to the states (None for g = 0)."""
        injected = small_linear(hidden, self.inject.weight[:, : self.config.hidden_size])
        added = self.inject.bias if context is None else context
        return super().fuse(embeds, injected if added is None else injected + added)

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Queries are never grouped, even where the target groups them."""
        return super().sizes_for(parts, sizes) | {"num_key_value_heads": 0}

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Read a checkpoint of the second stage; files of the first have no adaptor. The adaptor's queries give num_q."""
        state = {
            name.replace("img_adaptor.query", _QUERIES).replace("img_adaptor.", "imadpt."): value
            for name, value in plain_names(state).items()
        }  # the first names are NeMo Automodel's
        fields = one_layer_sizes(state, config, ONE_AXIS)
        if _QUERIES not in state:
            raise ValueError(f"sd: expected {_QUERIES} of a vision adaptor, got none; load a stage-1 file as 'eagle2'")
        names = {
            **one_layer_names(fields),
            "inject.weight": ("img_fc.weight",),
            "adaptor.q": (_QUERIES,),
            **{f"adaptor.{x}_proj.weight": (f"imadpt.{x}_proj.weight",) for x in "kvo"},
        }
        if fields["qkv_bias"]:
            names |= {f"adaptor.{x}_proj.bias": (f"imadpt.{x}_proj.bias",) for x in "kv"}
        if fields["bias"]:
            names["inject.bias"] = ("img_fc.bias",)
        unused = (EMBEDDING, *copied_head(state, target))
        return fill_drafter(cls(ViSpecConfig(**fields, num_q=state[_QUERIES].shape[0])), state, names, unused)

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Both stages: 68k texts for an EAGLE drafter without pictures, then 68k pictures, 20 epochs of batch 8, the
        first a warm-up. The paper reports cross-entropy; these are the terms of the code. The second stage's passes on
        true states and on the drafter's own have equal weight. In the public code all keys of the second pass are the
        drafter's own. Here a place attends to true slots except for its own draft, as in drafting."""
        from mmspec.vlm.training.recipes import feature_recipe

        return {
            "vispec_stage1": feature_recipe("smooth_l1,cross_entropy:0.1,list_mle:0.01"),
            cls.kind: feature_recipe(
                "l1:10,list_mle:0.1",
                depths=2,
                depth_decay=1.0,
                over_depths="mean",
                lr=3e-6,
                warmup=1 / 20,
                answers="own",
            ),
        }

    @classmethod
    def warm_start(cls, drafter: PretrainedDrafter) -> PretrainedDrafter:
        """Return a drafter of the first stage as the start of the second; any other drafter unchanged."""
        return cls.from_stage1(drafter) if isinstance(drafter, Eagle) else drafter


_QUERIES = "imadpt.q"
