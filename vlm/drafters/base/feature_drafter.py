"""Base of drafters that predict the target's next hidden state with one decoder layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_norm
from mmspec.core.drafting.pair_state import PairState
from mmspec.core.drafting.unroll import Fuse, unroll
from mmspec.core.layers.fingerprint import module_like
from mmspec.core.round.cache import SlotCache
from mmspec.io.pretrained import PLAIN, drafter_sizes, layer_names
from mmspec.io.validation import Size, check_fields
from mmspec.kernels.small_linear import small_linear
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.published_files import layer_count, refuse_unread
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter


@dataclass(frozen=True, slots=True)
class FeatureConfig:
    hidden_size: int  # the target's
    intermediate_size: int
    num_attention_heads: int
    vocab_size: Size  # the target's
    num_key_value_heads: int = 0  # 0 for as many as queries have
    head_dim: int = 0  # 0 for hidden_size / num_attention_heads
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    bias: bool = True  # of the fusing layer
    qkv_bias: bool = False  # of queries, keys and values
    input_norm: bool = False  # for MSD on Qwen2-VL, SpecVLM; not public EAGLE-1/2, ViSpec, FLASH, MSD on LLaVA
    output_norm: bool = False  # whether the predicted features are normed, as in files of NeMo Automodel

    def __post_init__(self) -> None:
        check_fields(self)
        self.layer()

    def layer(self) -> LayerConfig:
        return LayerConfig.of(self)


def one_layer_names(fields: Mapping[str, Any], prefix: str = "layers.0.") -> dict[str, tuple[str, ...]]:
    """Return a dict from our names of a feature drafter's weights to the published names, `prefix` in front of the
    layer's; `fields` are those of `drafter_sizes`."""
    names = layer_names(prefix, fields["qkv_bias"]) | {"fc.weight": ("fc.weight",)}
    if fields["bias"]:
        names["fc.bias"] = ("fc.bias",)
    if fields.get("input_norm"):
        names["norm.weight"] = (f"{prefix}input_layernorm.weight",)
    return names | ({"out_norm.weight": ("norm.weight",)} if fields.get("output_norm") else {})


def one_layer_sizes(
    state: Mapping[str, Tensor],  # under plain names
    config: Mapping[str, Any],
    rotations: Collection[str] = PLAIN,  # see `rotary_fields`
) -> dict[str, Any]:
    """Return the fields of a FeatureConfig from a published file; its tensors show the biases and norms. A file of
    several layers is refused. The `num_hidden_layers` of the config can be the target's."""
    if (count := layer_count(state)) > 1:
        raise ValueError(f"sd: expected a drafter of one layer, got {count} layers; no others are supported")
    refuse_unread(config, "norm_output")
    layers, sliding = config.get("layer_types", ())[: max(count, 1)], config.get("sliding_window")
    if sliding and "sliding_attention" in layers:
        raise ValueError(
            f"layer_types: expected full_attention, got sliding_attention with sliding_window {sliding}; windows are "
            "not supported for this kind"
        )
    fields = drafter_sizes({**config, "num_hidden_layers": 1}, rotations)
    return fields | {
        "bias": config.get("bias", config.get("fc_bias", "fc.bias" in state)),
        "qkv_bias": config.get("qkv_bias", "layers.0.self_attn.q_proj.bias" in state),
        "input_norm": "layers.0.input_layernorm.weight" in state,
        "output_norm": "norm.weight" in state,
    }


class FeatureDrafter(ShapedDrafter):
    """Base of drafters whose decoder layer predicts the target's next hidden state (EAGLE-1/2 and its variants). A
    linear layer fuses the target's state h_j and the embedding of token j + 1 into slot j. The layer predicts h_{j+1}
    from it, and the target's own head reads token j + 2 from the prediction, without a norm. Positions are 1-D even
    where the target's are not. Subclasses choose the slots of a prompt (`read`) and may change `fuse` and `logits`."""

    padded_vocabulary: ClassVar[bool] = True
    config: FeatureConfig

    def __init__(self, config: FeatureConfig):
        super().__init__(config)
        width = config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=config.bias)
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps) if config.input_norm else None
        self.out_norm = nn.RMSNorm(width, eps=config.rms_norm_eps) if config.output_norm else None
        self.layer = DraftLayer(config.layer())

    def new_state(self, target: object) -> FeatureState:
        return FeatureState(self, target)

    def read(self, view: PromptView) -> PromptSlots:
        """Return the slots of a prompt; here every pair is a slot, for pictures as for text."""
        return pack_slots(*self.fuse(view.embeds, view.hidden), view.real, torch.ones_like(view.picture) > 0)

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the input of attention and the residual, [B, n, H] each, of the next tokens' embeddings and the states
        before them, [B, n, H] each. `read` assigned the `context`, [B, n or 1, M], None in drafters without it."""
        u = small_linear(torch.cat([embeds, hidden], -1), self.fc.weight, self.fc.bias)
        return self.normed(u), u

    def normed(self, u: Tensor) -> Tensor:
        """Return the attention's input: `u` after the layer's norm, where the layer has a norm."""
        norm = self.norm
        return u if norm is None else rms_norm(norm, u)

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Return the predicted features [B, n, H] of n new slots, see `DraftLayer.forward`."""
        return self.finished(self.layer(attend, carry, rotary, cache, bias))

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return the float32 logits [..., V] of tokens `depth` levels below the root, from features [..., H]."""
        return head(out).float()

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Return the features [B, R - first, H] of the slots from `first` on, at each depth, as drafting computes them.
        The output of slot r at depth d is that of a draft which started d slots earlier."""
        embeds = view.embeds_of(slots, first)
        context = None if slots.context is None else slots.context[:, first:]
        return self.unroll_with(slots, first, depths, lambda before: self.fuse(embeds, before, context))

    @property
    def layers(self) -> tuple[DraftLayer, ...]:
        """The decoder layers, in order."""
        return (self.layer,)

    def finished(self, out: Tensor) -> Tensor:
        """Return the features that are output and read at the next depth, from the last layer's outputs [B, n, H]."""
        return out if self.out_norm is None else rms_norm(self.out_norm, out)

    def unroll_with(self, slots: PromptSlots, first: int, depths: int, fuse: Fuse) -> list[Tensor]:
        """Unroll with `fuse`, which computes the input of the next depth, see `mmspec.core.drafting.unroll`."""
        rotary = self.layer.rotary_at(slots.position, slots.attend.dtype)
        return unroll(self.layers, slots.attend, slots.carry, rotary, first, depths, fuse, finish=self.finished)


class FeatureState(PairState):
    """A cache of the slots of committed pairs (h_j, e_{j+1}). `cache.lengths` counts slots, fewer than tokens where
    pictures are compressed; `next_position` is the next slot's. `pictures`, bool [B, R], are the first slots that come
    from pictures, None before the prompt is read. `highest` is the prompt's highest position where positions are the
    target's, else 0. `latest` is the last pass's input and positions; after `ready`, of committed pairs."""

    held: ClassVar[tuple[str, ...]] = ("next_position", "context")

    def __init__(self, drafter: object, target: object):
        like = torch.empty(0, dtype=target.parts.embed.weight.dtype, device=target.device)
        super().__init__(module_like(drafter, like), target)
        self.cache = SlotCache(1, 0)
        self.rotary = self.context = None
        self.pictures: Tensor | None = None
        self.highest = 0
        self.latest: tuple[Tensor, Tensor] | None = None

    def serve(self, target: object) -> None:
        super().serve(target)
        ruling = torch.zeros(target.parts.vocab_size, device=target.device)
        ruling[list(target.parts.placeholders)] = -torch.inf
        ruling[self.drafter.config.vocab_size :] = -torch.inf  # rows of the target that its tokenizer does not use
        ruling, self.ids = target.processors.suppress(ruling), self.drafter.vocabulary
        self.ruling = ruling if self.ids is None else ruling[self.ids]

    @torch.no_grad()
    def prefill(self) -> None:
        """Read all pairs of the prompt but the last, whose next token comes from the first pass."""
        self.next_position = torch.zeros(self.target.batch, dtype=torch.long, device=self.target.device)
        # room for all tokens that the target can generate; the pool doubles when that is not enough
        self.cache.capacity = self.target.cache.capacity + self.slots_ahead + 64
        self.read_prompt()

    @torch.no_grad()
    def follow(self, target: object) -> Self:
        """Return this state for a follow-up request: only the new part of the prompt is read, and a pair whose second
        token has left it is dropped. The slots equal those after reading the whole prompt at once, except where a
        drafter depends on the whole prompt, as SpecVLM's gate does."""
        if self.next_position is None:
            self.prefill()
        if self.pending_features:
            self.read_pending()
        self.rewind(self.stale_slots(target))
        self.serve(target)
        self.read_prompt()
        return self

    def read_pending(self) -> None:
        self.catch_up()

    def stale_slots(self, target: object) -> int:
        """Return the number of last slots that the prompt of `target`, the follow-up request, no longer holds."""
        return target.turn.forget

    def unread(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids int64 [B, n], embeddings [B, n, H] and states [B, n, F] of the prompt's unread part. A pair joins
        a token's state with the next token's embedding, so the first embedding belongs to no pair."""
        target, turn = self.target, getattr(self.target, "turn", None)
        ids, embeds, hidden = target.prompt, target.prompt_embeds, target.prompt_hidden
        if turn is None or not turn.start:
            return ids, embeds, hidden
        if turn.before is None:
            return ids[:, turn.start :], embeds, hidden
        # the state behind the last cached token, and the token that now follows it
        return ids[:, turn.start - 1 :], F.pad(embeds, (0, 0, 1, 0)), torch.cat([turn.before, hidden], 1)

    def view(self) -> PromptView:
        target, (ids, embeds, hidden) = self.target, self.unread()
        parts, padding = target.parts, target.padding if ids.shape == target.prompt.shape else None
        view = PromptView.of(ids, embeds, hidden, parts.placeholders, parts.tokens_per_image, padding)
        if self.pictures is not None:
            view.shown = bool(self.pictures.any())
            view.context = None if self.context is None else self.context[:, 0]
        return view

    def fill(self, slots: PromptSlots) -> None:
        self.remember(slots.attend, self.turned(slots), slots.count)

    def turned(self, slots: PromptSlots) -> Tensor:
        """Return the rows of the rotary table at the positions of a view's slots, [B, R, 2, dim]."""
        return self.rotary[self.next_position[:, None] + slots.position]

    @property
    def slots_ahead(self) -> int:
        """The most positions behind the pending token that the slots of a draft can have."""
        return self.deepest

    def read_prompt(self) -> None:
        view, before = self.view(), self.cache.width
        slots = self.drafter.read(view)
        self._reach(slots.attend.dtype)
        self.fill(slots)
        self.next_position = self.next_position + slots.next_position
        shown = slots.of_pictures(view.picture)
        if self.pictures is not None:
            earlier = F.pad(self.pictures, (0, before - self.pictures.shape[1]))  # cut at the end of the cache
            shown = torch.cat([earlier, shown], 1)
        self.pictures = shown
        if slots.last_context is not None:
            self.context = slots.last_context[:, None]

    def _reach(self, dtype: torch.dtype) -> None:
        """Extend the rotary table to every position that the next draft can have."""
        target = self.target
        needed = max(target.prompt.shape[1], self.highest) + max(map(len, target.tokens)) + self.slots_ahead + 1
        if self.rotary is None or self.rotary.shape[0] < needed:
            self.rotary = self.drafter.layer.rotary(2 * needed + 512, target.device, dtype)

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        attend, carry = self.drafter.fuse(self.drafter.embeddings(value, self.target.parts), hidden, self.context)
        self._reach(attend.dtype)
        position = self.next_position[:, None] + ahead
        self.latest = attend, position
        self.passes += 1
        bias = self.bias(ancestor, back, attend.dtype)
        return self.drafter.forward(attend, carry, self.rotary[position], self.cache, bias)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """Return float32 logits [..., V] of predicted features, or [..., k] for the k tokens in `ids`, without visual
        placeholders. `depth` counts the levels below the root, from 1."""
        scores = self.drafter.own_logits(out, depth, self.target.parts.head)
        rest = len(self.ruling) - scores.shape[-1]  # rows of the target behind the drafter's vocabulary
        return (F.pad(scores, (0, rest), value=-torch.inf) if rest else scores) + self.ruling

    def law(self, out: Tensor, depth: int) -> Tensor:
        """Return the log-weights that a sampled request draws from: `logits` after the target's own warping."""
        return self.target.processors.warp(self.logits(out, depth), self.ids is not None)
