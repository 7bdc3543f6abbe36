"""The multi-token-prediction layer of a checkpoint: an additional decoder layer of the target's own class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache

from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.layers.compat import CACHE
from mmspec.core.round.cache import SlotCache
from mmspec.io.pretrained import fill_drafter
from mmspec.methods import method
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, pack_slots
from mmspec.vlm.drafters.base.trained_drafter import LogitTransform, ShapedDrafter
from mmspec.vlm.drafters.mtp.published import (
    COPIES,
    check_layer_config,
    is_mtp_tensor,
    mtp_tensors,
    stack_experts,
    write_mtp,
)


@dataclass(frozen=True, slots=True)
class MtpConfig:
    hidden_size: int  # the target's
    vocab_size: int  # the target's
    normed: bool = True  # whether the states are read behind the target's final norm, as in vLLM and transformers
    states_first: bool = False  # whether the states stand before the embeddings in the input of `fc`


@method(
    "mtp",
    domain="vlm",
    kind="drafter",
    title="MTP layer",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=13,
    about="one more layer of the target's own class",
    paper="DeepSeek-V3 Technical Report",
)
class Mtp(ShapedDrafter):
    """An additional decoder layer of the target's class, from the target's own checkpoint. Exact in every shape.

    Paper: "DeepSeek-V3 Technical Report". A linear layer joins the normed embedding of token j + 1 and the normed state
    behind token j into slot j. The result passes the layer and a norm, and the target's head reads token j + 2 from it.
    The output is the state of the next depth. Slot j stands at the position of token j + 1, on all axes of the target.
    `write_mtp` saves a layer that was trained here.
    """

    name = "mtp"
    published_as = ("speculators:mtp",)
    writers: ClassVar[Mapping[str, str]] = {"speculators": "mmspec.vlm.export.mtp:mtp_speculators"}
    in_target: ClassVar[bool] = True
    trainable: ClassVar[bool] = False
    any_target: ClassVar[bool] = False
    config: MtpConfig

    def __init__(self, config: MtpConfig, parts: Parts):
        super().__init__(config)
        width, norm = config.hidden_size, parts.decoder.norm
        self.levels = None if config.normed else (parts.layers,)
        self.decoder = one_layer_decoder(parts.decoder)
        self.embedding_norm, self.hidden_norm = (copy.deepcopy(norm) for _ in range(2))
        self.fc = nn.Linear(2 * width, width, bias=False)

    def new_state(self, target: object) -> MtpState:
        return MtpState(self, target)

    def fuse(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """Return the layer's input [B, n, H], from the next embeddings and the states [B, n, H]."""
        pair = [self.embedding_norm(embeds), self.hidden_norm(hidden)]
        return self.fc(torch.cat(pair[::-1] if self.config.states_first else pair, -1))

    def read(self, view: PromptView) -> PromptSlots:
        """Return the slots of a prompt: every pair is a slot."""
        read = self.fuse(view.embeds, view.hidden)
        return pack_slots(read, read, view.real, torch.ones_like(view.picture) > 0)

    def unroll(self, slots: PromptSlots, view: PromptView, first: int, depths: int) -> list[Tensor]:
        """See `unroll_layer`; slots stand at the target's positions."""
        if view.place is None:
            raise ValueError("teacher: expected batches with the target's positions, got none; use a live teacher")
        origin = slots.origin.clamp(min=0)
        position = view.place.gather(-1, origin.expand(*view.place.shape[:-2], -1, -1))
        embeds = view.embeds_of(slots, first)
        return unroll_layer(
            self.decoder, slots.attend, position, first, depths, lambda before: self.fuse(embeds, before)
        )

    def forward(self, read: Tensor, position: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Return the normed outputs [B, n, H] of n new slots, and write their keys and values to `cache`. Positions are
        int64 [B, n] or [A, B, n]. `bias`, [B or 1, 1, n, slots], is additive, None to see all slots before."""
        inputs = dict(inputs_embeds=read, position_ids=position, attention_mask=bias, use_cache=True)
        return self.decoder(**inputs, **{CACHE: cache}).last_hidden_state

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return the float32 logits [..., V] of outputs [..., H]."""
        return head(out).float()

    def save_pretrained(self, folder: str | Path, *, dtype: object = None) -> None:
        """Refuse to save: the weights belong to the checkpoint."""
        raise ValueError(
            "mtp: expected a drafter with files of its own, got layers of the target's checkpoint; load them "
            "from there again"
        )

    def save_for(self, target: nn.Module, folder: str | Path, dtype: object) -> None:
        """Write the layer as a checkpoint of the target's class stores it, see `write_mtp`."""
        write_mtp(self, target, folder, dtype)

    @classmethod
    def new(cls, parts: Parts, sizes: Mapping[str, Any]) -> Self:
        return cls(MtpConfig(parts.hidden_size, parts.vocab_size, **sizes), parts)

    @classmethod
    def tensor_filter(cls, target: nn.Module | None) -> Callable[[str], bool]:
        if target is None:
            return super().tensor_filter(target)
        layers = target.config.get_text_config(decoder=True).num_hidden_layers
        return lambda name: is_mtp_tensor(name, layers)

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Return the MTP layer of the target's checkpoint, or of a folder of the `speculators` library, see
        `check_layer_config`. Names are "mtp.*" (Qwen3-Next, Qwen3.5, Exaone 4.5), those of a layer behind the model's
        last with an `eh_proj` (DeepSeek-V3, Kimi, GLM), or "mtp_layers.0.*" (`speculators`). Experts in separate
        tensors are stacked. Of a checkpoint's config, `mtp_hidden_states_first` is read."""
        if target is None:
            raise ValueError(
                "target: expected the model whose checkpoint this is, got none; an MTP layer has the model's own class"
            )
        parts = take_apart(target)
        if "transformer_layer_config" in config:
            check_layer_config(config, target)
        own = stack_experts(mtp_tensors(state, parts.layers))
        text = config.get("text_config") or {}
        first = bool(config.get("mtp_hidden_states_first") or text.get("mtp_hidden_states_first"))
        drafter = cls.new(parts, {"states_first": first})
        names = {name: (name,) for name in drafter.state_dict()}
        return fill_drafter(drafter, own, names, [f"decoder.layers.0.{name}" for name in COPIES])


@torch.no_grad()
def one_layer_decoder(decoder: nn.Module) -> nn.Module:
    """Return a decoder of the same class without embeddings, with one layer of full attention, and experts as in the
    target."""
    config = copy.deepcopy(decoder.config)
    changes = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_layer_types": None, "first_k_dense_replace": 0,
            "mlp_only_layers": [], "decoder_sparse_step": 1, "vocab_size": 1, "pad_token_id": None}  # fmt: skip
    for name, value in changes.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, [config.mlp_layer_types[-1]] if name == "mlp_layer_types" else value)
    with torch.random.fork_rng():
        single = type(decoder)(config)
    single.embed_tokens = nn.Identity()
    return single


class MtpState(FeatureState):
    """Slots stand at the target's own positions, on as many axes: `next_position` is int64 [B] or [A, B]."""

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.transform = LogitTransform.of(target.parts)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """See `FeatureState.logits`; the target's transform of its logits is applied."""
        return self.transform(self.drafter.logits(out, depth, self.target.parts.head)) + self.ruling

    def read_prompt(self) -> None:
        target, drafter = self.target, self.drafter
        _, embeds, hidden = self.unread()
        embeds, hidden = embeds[:, 1:], hidden[:, :-1]
        batch, pairs = hidden.shape[:2]
        positions = target.prompt_positions.expand(*target.prompt_positions.shape[:-2], batch, -1)
        self.next_position = positions[..., -1] + 1
        if not pairs:  # a prompt of one token
            empty = embeds.new_empty(batch, 1, 0, 1)
            return self.cache.reserve(empty, empty)
        places, counts, causal = positions[..., -pairs:], [pairs] * batch, None
        if self.cache.width:
            causal = torch.ones(1, pairs, pairs, dtype=torch.bool, device=target.device).tril()
        elif target.padding is not None:  # rows are moved to the left, so that the padding takes no slots
            padding = target.padding[:, :-1]
            order = padding.long().argsort(dim=1, stable=True)
            counts = (~padding).sum(1).tolist()
            embeds, hidden = (x.gather(1, order[..., None].expand_as(x)) for x in (embeds, hidden))
            places = places.gather(-1, order.expand_as(places))
        self.passes += 1
        read = drafter.fuse(embeds, hidden)
        drafter(read, places, self.cache, None if causal is None else self.bias(causal, 0, read.dtype))
        self.cache.advance(counts)

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        read = self.drafter.fuse(self.target.parts.embed(value), hidden)
        position = self.next_position[..., None] + ahead
        if position.shape[-1] != value.shape[1]:  # nodes of one level share a position
            position = position.expand(*position.shape[:-1], value.shape[1])
        self.passes += 1
        return self.drafter(read, position, self.cache, self.bias(ancestor, back, read.dtype))


def unroll_layer(
    decoder: nn.Module, read: Tensor, position: Tensor, first: int, depths: int, fuse: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Return the normed outputs [B, R - first, H] at each depth, see `DraftLayer.unroll`, of inputs [B, R, H] at
    positions int64 [B, R] or [A, B, R]. `fuse` maps outputs [B, R - first, H] of the slots before to the slots' inputs.
    """
    count = read.shape[1]
    place = torch.arange(count, device=read.device)
    slot, cache = place[first:], DynamicCache()
    seen, outputs = [place <= place[:, None]], []
    for depth in range(depths):
        if depth:
            read = fuse(F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1])
            # keys so far: the true slots, then the drafted slots of depth 1, 2, ... up to this depth
            seen = [place <= slot[:, None] - depth, *(slot == slot[:, None] - (depth - d) for d in range(1, depth + 1))]
        out = decoder(
            inputs_embeds=read,
            position_ids=position[..., -read.shape[1] :],
            attention_mask=torch.cat(seen, -1)[None, None].expand(len(read), -1, -1, -1),
            use_cache=True,
            **{CACHE: cache},
        ).last_hidden_state
        outputs.append(out if depth else out[:, first:])
    return outputs
