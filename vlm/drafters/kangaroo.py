"""Kangaroo: the first layers of the target and a trained adapter draft, and the other layers verify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.drafting.growth import DraftBudget
from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_norm
from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.drafting.shapes import Chain, Shape
from mmspec.core.drafting.unroll import unroll
from mmspec.core.length.controls import ConfidenceStop, LengthControl
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.draft import Draft, EntryStates
from mmspec.core.round.keys import Keys
from mmspec.core.round.tree import chain
from mmspec.io.validation import Size, check_fields
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.pretrained_drafter import layer_sizes
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.partial_passes import check_partial, first_exit, read_ahead


@dataclass(frozen=True, slots=True)
class KangarooConfig:
    hidden_size: int
    num_attention_heads: int
    vocab_size: Size
    exit: Size = 2  # the number of the target's layers that draft
    num_key_value_heads: int = 0  # 0 for as many as queries have
    head_dim: int = 0  # 0 for hidden_size / num_attention_heads
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    qkv_bias: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        self.layer()

    def layer(self) -> LayerConfig:
        return LayerConfig.of(self, intermediate_size=1, norms_input=True)


class AdapterLayer(DraftLayer):
    def __init__(self, config: LayerConfig):
        super().__init__(config)
        self.gate_up = self.down = None

    def finish(self, carry: Tensor, attended: Tensor) -> Tensor:
        return rms_norm(self.norm, carry + small_linear(attended.transpose(1, 2).flatten(2), self.out.weight))


def chain_of(chain: int = 0, length: LengthControl | str | None = None) -> Shape | None:
    """Return the shape that settings request, None where they request none.

    Args:
        chain: The tokens of a chain.
        length: The controller of a chain's length, such as (confidence:threshold=0.6,longest=6).
    """
    return shape_of(chain, length=length)


@method(
    "kangaroo",
    domain="vlm",
    kind="drafter",
    title="Kangaroo",
    exact=True,
    needs=("weights",),
    takes=chain_of,
    order=17,
    about="the target's first layers and an adapter; the target continues from their states",
    drafts=("sampled chain",),
    paper="Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting",
)
class Kangaroo(ShapedDrafter):
    """Drafts with the target's first `exit` layers, an adapter and the target's head. Exact.

    Paper: "Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting". A verification runs the other layers
    alone, over the states that drafting has computed. A chain ends where the next token is unsure: the public code
    drafts this token too. The confidence is of the distribution that tokens are drawn from, behind the temperature.
    """

    kind: ClassVar[str] = "kangaroo"
    config_class = KangarooConfig
    config: KangarooConfig
    name, steps = "kangaroo", ("levels", 3, 0)
    predicts_states: ClassVar[bool] = False

    def __init__(self, config: KangarooConfig):
        super().__init__(config)
        self.levels = (config.exit,)
        self.layer = AdapterLayer(config.layer())
        self.shapes = (Chain(ConfidenceStop(0.6, longest=6)),) * 2

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The exit lies behind 2 layers, or behind the layers with DeepStack."""
        return layer_sizes(parts) | {"exit": max(first_exit(parts), min(2, parts.layers - 1))}

    def start_from(self, parts: Parts) -> Self:
        self.layer.norm.weight.data.copy_(parts.decoder.norm.weight)
        return self

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """The recipe of the public code: EAGLE's with the distillation of the head alone."""
        from mmspec.vlm.training.recipes import feature_recipe

        return {cls.kind: feature_recipe("cross_entropy", noise=0.0)}

    def check(self, parts: Parts) -> None:
        super().check(parts)
        check_partial(parts, self.config.exit)

    def with_shape(self, shape: Shape, sampled: Shape | None = None) -> Self:
        """Take chains alone, since their nodes lie in the target's cache in the order of drafting."""
        for form in (shape, sampled or shape):
            if not isinstance(form, Chain):
                raise ValueError(
                    f"shape: expected a Chain for {self.name}, got a {type(form).__name__}; set chain or length"
                )
        return super().with_shape(shape, sampled)

    def new_state(self, target: object) -> KangarooState:
        return KangarooState(self, target)

    def read(self, view: PromptView) -> PromptSlots:
        """Return the exit state of every token but the last, for pictures as for text. The state of token j predicts
        token j + 1, which is the second token behind the pair before it: its `origin`."""
        slots = pack_slots(view.hidden, view.hidden, view.real, torch.ones_like(view.picture) > 0)
        return replace(slots, origin=(slots.origin - 1).clamp(min=-1))

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the input of the attention and its residual: the exit states [B, n, H]."""
        return hidden, hidden

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Return the states [B, n, H] that the head reads, see `DraftLayer.forward`."""
        return self.layer(attend, carry, rotary, cache, bias)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return the float32 logits [..., V] of tokens, from states [..., H]; `depth` changes nothing."""
        return head(out).float()

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """Return float [B, R - first, H] in a list of length 1: exit states are the same at every depth."""
        rotary = self.layer.rotary_at(slots.position, slots.attend.dtype)
        return unroll([self.layer], slots.attend, slots.carry, rotary, first, 1, lambda before: (before, before))


class KangarooState(FeatureState):
    """A slot of the adapter holds the exit state of a committed token before the root. A draft reads the accepted
    states and the root's in a single pass. `states` are the exit states [B, 1, H] of the root and the drafted tokens.
    """

    def __init__(self, drafter: Kangaroo, target: object):
        super().__init__(drafter, target)
        self.states: list[Tensor] = []

    def enter(self, token: Tensor) -> Tensor:
        """Run the target's first layers over the next token of the draft, int64 [B, 1]."""
        embeds = self.target.parts.embed(token)
        self.states.append(read_ahead(self.target, embeds, len(self.states), 0, self.drafter.config.exit))
        return self.states[-1]

    @torch.no_grad()
    def ready(self, depth: int | None = None) -> None:
        """Read the accepted states and the root's. The root's slot does not count yet."""
        if self.next_position is None:
            self.prefill()
        if not self.pending_features:
            return
        hidden, _, self.counts = self.pending_features.take()
        self.states = []
        token = self.target.pending[:, None]
        root, count = self.enter(token), torch.tensor(self.counts, device=token.device)
        states = torch.cat([hidden, root], 1)
        states[torch.arange(len(count), device=count.device), count] = root[:, 0]
        tree = chain(states.shape[1] - 1, token.device)
        out = self.read(token, states, tree.depth, tree.ancestor, 0)
        self.root = out[torch.arange(len(count), device=count.device), count]
        self.next_position = self.next_position + count
        self.cache.advance(self.counts)

    def draft(self, target: object, keys: Keys, budget: DraftBudget) -> Draft:
        self.cache.advance(1)  # the root's slot
        self.next_position = self.next_position + 1
        draft = super().draft(target, keys, budget)
        self.rewind(1)
        if len(self.states) < draft.tree.nodes:
            self.enter(draft.value[:, -1:])
        draft.entry = EntryStates(self.drafter.config.exit, torch.cat(self.states, 1), draft.value)
        return draft

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        return super().expand(token, self.enter(token), ancestor, back, depth)
