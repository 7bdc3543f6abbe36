"""Mixture of Attentions: a drafter that mixes the target's layers token by token and reads verified tokens alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import rms_norm
from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.drafting.rotary import apply_rotary
from mmspec.core.round.cache import SlotCache
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.committed_keys import committed_slots
from mmspec.vlm.drafters.base.cross_drafter import CrossConfig, CrossDrafter, CrossState, Seen
from mmspec.vlm.drafters.base.prompt_slots import PromptView, pack_slots


@dataclass(frozen=True, slots=True)
class MoaConfig(CrossConfig):
    levels: tuple[int, ...] = (0,)  # layers whose inputs are mixed; the number of layers: the last output

    def __post_init__(self) -> None:
        CrossConfig.__post_init__(self)
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels or list(self.levels) != sorted(set(self.levels)) or self.levels[0] < 0:
            raise ValueError(f"levels: expected rising layers of the target, got {self.levels}; change them")


class LayerAttention(nn.Module):
    """Attention across the layers at each token, averaged into a row; `scale` [levels, width] weights norms."""

    def __init__(self, levels: int, width: int, heads: int, eps: float):
        super().__init__()
        self.heads, self.eps = heads, eps
        self.scale = nn.Parameter(torch.ones(levels, width))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return the rows [B, T, width] of states [B, T, levels * width]; tokens do not see each other."""
        levels = states.unflatten(-1, self.scale.shape)
        levels = F.rms_norm(levels, levels.shape[-1:], None, self.eps) * self.scale.to(states.dtype)
        parts = small_linear(levels, self.qkv.weight).unflatten(-1, (3, self.heads, -1)).flatten(0, 1)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))  # [B * T, heads, levels, dim]
        mixed = F.scaled_dot_product_attention(query, key, value).mean(2).flatten(1)
        return levels.mean(-2) + small_linear(mixed, self.out.weight).view(*states.shape[:2], -1)


@method(
    "moa",
    domain="vlm",
    kind="drafter",
    title="Mixture of Attentions",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=16,
    about="the target's layers mixed token by token, read by a layer over token embeddings",
    paper="Mixture of Attentions For Speculative Decoding",
)
class MixtureOfAttentions(CrossDrafter):
    """Self-attention across layers, then a layer over embeddings that reads the mixed rows. Exact in every shape.

    Paper: "Mixture of Attentions For Speculative Decoding" (arXiv 2410.03804), without the target's own layers (N = 0).
    Each verified token is mixed once, into the key and value of a row. A draft reads these rows and embeddings alone,
    never features of its own, so training sees the same inputs as drafting. Rows of pictures stay; positions are 1-D. Here the
    attention to the text comes before that to the rows. Turns of a conversation are read again as a whole.
    """

    kind: ClassVar[str] = "moa"
    config_class = MoaConfig
    name, steps = "mixture of attentions", ("levels", 1, 3)
    config: MoaConfig

    def __init__(self, config: MoaConfig):
        super().__init__(config)
        width, own = config.hidden_size, config.layer()
        self.levels = config.levels
        self.mix = LayerAttention(len(config.levels), width, config.num_attention_heads, config.rms_norm_eps)
        self.row_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.key_value = nn.Linear(width, 2 * own.groups * own.dim, bias=False)

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The levels are every quarter of the target's layers."""
        layers = parts.layers
        return super().sizes_for(parts, sizes) | {"levels": tuple(sorted({layers * n // 4 for n in range(5)}))}

    def new_state(self, target: object) -> MoaState:
        return MoaState(self, target)

    def check(self, parts: Parts) -> None:
        super().check(parts)
        if (highest := self.levels[-1]) > parts.layers:
            raise ValueError(
                f"levels: expected layers 0 to {parts.layers} of the target, got {highest}; train a drafter for "
                "this target"
            )

    def rows(self, states: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, groups, T, dim] of states [B, T, levels * H]; `rotary` is [B, T, 2, dim]."""
        config = self.layer.config
        rows = small_linear(rms_norm(self.row_norm, self.mix(states)), self.key_value.weight)
        rows = rows.unflatten(-1, (2 * config.groups, config.dim))
        keys = apply_rotary(rows[:, :, : config.groups], rotary)
        return keys.transpose(1, 2), rows[:, :, config.groups :].transpose(1, 2)

    def keys_of(self, view: PromptView) -> tuple[Tensor, Tensor, Tensor]:
        rotary = self.rotary(view.position, view.hidden.dtype)
        return *self.rows(view.hidden, rotary), rotary

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Cross-entropy with the target's distributions; the paper's loss is not public."""
        from mmspec.vlm.training.recipes import depth_recipe

        return {
            cls.kind: depth_recipe(
                "cross_entropy", depths=5, depth_decay=1.0, lr=5e-4, warmup=0.03, decay="cosine", clip=1.0
            )
        }


class MoaState(CrossState):
    """`mixed` caches the rows of verified tokens, which are the root's position many."""

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.mixed = SlotCache(1, 0)

    @torch.no_grad()
    def prefill(self) -> None:
        super().prefill()
        view = self.view()
        states = pack_slots(view.hidden, view.hidden, view.real, view.picture >= 0)
        self.mixed.capacity = self.target.cache.capacity
        self._mix(states.attend, states.position, states.count)

    def look(self) -> Seen:
        hidden, _, counts = self.pending_features.known()
        place = torch.arange(hidden.shape[1], device=hidden.device)
        self._mix(hidden, self.mixed.length[:, None] + place, counts)
        return committed_slots(self.mixed, 0)

    def _mix(self, states: Tensor, position: Tensor, counts: Tensor | list[int]) -> None:
        """Append the rows of states [B, T, F], of which row b uses the first `counts[b]`."""
        self.mixed.write(0, *self.drafter.rows(states, self.drafter.rotary(position, states.dtype)))
        self.mixed.advance(counts.tolist() if isinstance(counts, Tensor) else counts)

    def turned(self, like: Tensor, behind: Tensor) -> Tensor:
        return self.drafter.rotary(self.mixed.length[:, None] + behind, like.dtype)
