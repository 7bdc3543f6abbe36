"""Base of drafters that predict the target's next hidden state with one decoder layer, and the state of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_norm
from mmspec.core.drafting.pair_state import PairState
from mmspec.core.drafting.unroll import Fuse, unroll
from mmspec.core.fingerprint import module_like
from mmspec.io.pretrained import layer_names
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter


@dataclass(frozen=True, slots=True)
class FeatureConfig:
    """Sizes of a feature drafter; hidden_size and vocab_size are the target's.

    bias: of the fusing layer.   qkv_bias: of queries, keys and values.   num_key_value_heads, head_dim: 0 for the usual.
    input_norm: whether the layer norms its input before attention (the public EAGLE-1/2, ViSpec, FLASH and MSD on LLaVA
        do not; MSD on Qwen2-VL and SpecVLM do).
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    bias: bool = True
    qkv_bias: bool = False
    input_norm: bool = False

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise ValueError(f"vocab_size: expected at least 1, got {self.vocab_size}")
        self.layer()

    def layer(self) -> LayerConfig:
        """The sizes of the decoder layer.   Raises ValueError where they do not fit together."""
        return LayerConfig.of(self)


def one_layer_names(fields: Mapping[str, Any], prefix: str = "layers.0.") -> dict[str, tuple[str, ...]]:
    """Our names of a feature drafter's weights, and the published ones.   fields: see `drafter_sizes`."""
    names = layer_names(prefix, fields["qkv_bias"]) | {"fc.weight": ("fc.weight",)}
    return names | {"fc.bias": ("fc.bias",)} if fields["bias"] else names


class FeatureDrafter(ShapedDrafter):
    """Slot j fuses the target's state h_j and the embedding of token j + 1 by one linear layer and predicts h_{j+1}, from
    which the target's own head reads token j + 2.

    No norm stands in front of the head. Positions are 1-D, whatever the target's are. Embeddings and head are the target's.
    Subclasses choose the slots of a prompt (`read`) and may change `fuse` and `logits`.
    """

    config: FeatureConfig

    def __init__(self, config: FeatureConfig):
        super().__init__(config)
        width = config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=config.bias)
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps) if config.input_norm else None
        self.layer = DraftLayer(config.layer())

    def new_state(self, target: object) -> FeatureState:
        return FeatureState(self, target)

    def read(self, view: PromptView) -> PromptSlots:
        """What of a prompt becomes a slot. Here: every pair, pictures like text."""
        return pack_slots(*self.fuse(view.embeds, view.hidden), view.real, torch.ones_like(view.picture) > 0)

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What attention reads and the residual, [B, n, H] each, from next embeddings and states [B, n, H].

        context: [B, n or 1, M], what `read` says belongs to these slots, for drafters that have something of the kind.
        """
        u = F.linear(torch.cat([embeds, hidden], -1), self.fc.weight, self.fc.bias)
        return self.normed(u), u

    def normed(self, u: Tensor) -> Tensor:
        """The layer's input as its attention reads it."""
        norm = self.norm
        return u if norm is None else rms_norm(norm, u)

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Predicted features [B, n, H] of n new slots; see `DraftLayer.forward`."""
        return self.layer(attend, carry, rotary, cache, bias)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """float32 [..., V] for the children, `depth` levels below the root, of features [..., H]."""
        return head(out).float()

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Predicted features [B, R - first, H] of slots first.. at each depth, as drafting computes them.

        Depth d of slot r is what a draft that started d slots earlier holds there.
        """
        embeds = view.embeds_of(slots, first)
        context = None if slots.context is None else slots.context[:, first:]
        return self.unroll_with(slots, first, depths, lambda before: self.fuse(embeds, before, context))

    @property
    def layers(self) -> tuple[DraftLayer, ...]:
        """Its decoder layers, in order."""
        return (self.layer,)

    def finished(self, out: Tensor) -> Tensor:
        """The features that the drafter puts out and goes on from, [B, n, H] of the last layer's outputs."""
        return out

    def unroll_with(self, slots: PromptSlots, first: int, depths: int, fuse: Fuse) -> list[Tensor]:
        """`unroll` with a function that makes the input of the next depth, see `mmspec.core.drafting.unroll`."""
        rotary = self.layer.rotary_at(slots.position, slots.attend.dtype)
        return unroll(self.layers, slots.attend, slots.carry, rotary, first, depths, fuse, finish=self.finished)


class FeatureState(PairState):
    """Keeps the slots of committed pairs (h_j, e_{j+1}) in a cache of its own.

    `cache.lengths` counts slots, fewer than ids where pictures are compressed; `next_position` is that of the next slot.
    pictures: bool [B, R], which of the first cache slots come from pictures; None before the prompt is read.
    latest: the input and the positions of the last pass; right behind `ready`, of the pass over committed pairs.
    """

    held: ClassVar[tuple[str, ...]] = ("next_position", "context")

    def __init__(self, drafter: object, target: object):
        like = torch.empty(0, dtype=target.parts.embed.weight.dtype, device=target.device)
        super().__init__(module_like(drafter, like), target)
        self.cache = SlotCache(1, 0)
        self.rotary = self.context = None
        self.pictures: Tensor | None = None
        self.latest: tuple[Tensor, Tensor] | None = None

    def serve(self, target: object) -> None:
        super().serve(target)
        ruling = torch.zeros(target.parts.vocab_size, device=target.device)
        ruling[list(target.parts.placeholders)] = -torch.inf
        ruling, self.ids = target.processors.suppress(ruling), self.drafter.vocabulary
        self.ruling = ruling if self.ids is None else ruling[self.ids]

    @torch.no_grad()
    def prefill(self) -> None:
        """Reads the prompt: all its pairs but the last, whose next token came with the first pass."""
        self.next_position = torch.zeros(self.target.batch, dtype=torch.long, device=self.target.device)
        # room for what the target can generate; the pool doubles when that is not enough
        self.cache.capacity = self.target.cache.capacity + self.slots_ahead + 64
        self.read_prompt()

    @torch.no_grad()
    def follow(self, target: object) -> Self:
        """This state for a request that goes on where its own has ended: only what the new prompt adds is read.

        A pair whose second token is no longer the prompt's is forgotten. Slots hold what they would after the whole prompt,
        but for what a drafter makes of all of it at once (which branch SpecVLM's gate chooses).
        """
        if self.next_position is None:
            self.prefill()
        if self.pending_features:
            self.read_pending()
        self.rewind(self.stale_slots(target))
        self.serve(target)
        self.read_prompt()
        return self

    def read_pending(self) -> None:
        """Reads the pairs noted since the last draft."""
        self.catch_up()

    def stale_slots(self, target: object) -> int:
        """How many of its last slots hold what is no longer in the prompt of `target`, the request that follows."""
        return target.turn.forget

    def unread(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the target's prompt adds to the pairs kept: ids int64 [B, n], embeddings and states [B, n, .]; without earlier
        turns all of it. Pairs are a token's state and the next token with its embedding, so the first embedding is of none."""
        target, turn = self.target, getattr(self.target, "turn", None)
        ids, embeds, hidden = target.prompt, target.prompt_embeds, target.prompt_hidden
        if turn is None or not turn.start:
            return ids, embeds, hidden
        if turn.before is None:
            return ids[:, turn.start :], embeds, hidden
        # the state behind the last token held, and the token that now follows it
        return ids[:, turn.start - 1 :], F.pad(embeds, (0, 0, 1, 0)), torch.cat([turn.before, hidden], 1)

    def view(self) -> PromptView:
        """The pairs that are unread."""
        target, (ids, embeds, hidden) = self.target, self.unread()
        parts, padding = target.parts, target.padding if ids.shape == target.prompt.shape else None
        view = PromptView.of(ids, embeds, hidden, parts.placeholders, parts.tokens_per_image, padding)
        if self.pictures is not None:
            view.shown = bool(self.pictures.any())
            view.context = None if self.context is None else self.context[:, 0]
        return view

    def fill(self, slots: PromptSlots) -> None:
        """Writes a view's slots behind those the cache holds."""
        self.remember(slots.attend, self.rotary[self.next_position[:, None] + slots.position], slots.count)

    @property
    def slots_ahead(self) -> int:
        """How many positions behind the pending token a draft's slots can have."""
        return self.deepest

    def read_prompt(self) -> None:
        """Reads what the target's prompt adds to the slots of earlier turns."""
        view, before = self.view(), self.cache.width
        slots = self.drafter.read(view)
        self._reach(slots.attend.dtype)
        self.fill(slots)
        self.next_position = self.next_position + slots.next_position
        shown = slots.of_pictures(view.picture)
        if self.pictures is not None:
            earlier = F.pad(self.pictures, (0, before - self.pictures.shape[1]))  # cut where the cache was
            shown = torch.cat([earlier, shown], 1)
        self.pictures = shown
        if slots.last_context is not None:
            self.context = slots.last_context[:, None]

    def _reach(self, dtype: torch.dtype) -> None:
        """Makes rotary rows for every position the next draft can have."""
        target = self.target
        needed = target.prompt.shape[1] + max(map(len, target.tokens)) + self.slots_ahead + 1
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
        """float32 [..., V] of predicted features, or [..., k] of the tokens in `ids`, visual placeholders ruled out.

        depth: of the children, from 1.
        """
        return self.drafter.own_logits(out, depth, self.target.parts.head) + self.ruling

    def law(self, out: Tensor, depth: int) -> Tensor:
        """Log-weights a sampled request draws from: `logits` as the target warps its own."""
        return self.target.processors.warp(self.logits(out, depth), self.ids is not None)
