"""Gemma 4's assistant, whose layers read the target's own keys and values, and its published files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.drafting.layer import rms_norm
from mmspec.core.drafting.request_shape import shape_of
from mmspec.io.pretrained import fill_drafter
from mmspec.io.validation import Count, Size, check_fields
from mmspec.kernels.small_linear import small_linear
from mmspec.methods import method
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.committed_keys import committed_slots
from mmspec.vlm.drafters.base.head_drafter import HeadState
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.gemma4.layers import ClusteredHead, QueryLayer, rotary_at

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Gemma4AssistantConfig:
    hidden_size: Size  # the assistant's own
    backbone_hidden_size: Size  # the target's
    vocab_size: Size  # the target's
    intermediate_size: Size
    num_attention_heads: Size
    layer_types: tuple[str, ...]
    head_dim: Size  # in sliding layers, as in the target
    global_head_dim: Size  # in full layers, as in the target
    sliding_window: Size  # a sliding layer sees `sliding_window` + 1 keys before the root
    sliding_theta: float = 10000.0
    full_theta: float = 1000000.0
    full_share: float = 0.25  # the share of a full layer's head that is rotated
    rms_norm_eps: float = 1e-6
    clusters: Count = 0  # of a head that scores only a few of them; 0 for a head that scores all tokens
    clusters_read: Size = 32

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_types", tuple(self.layer_types))
        check_fields(self)
        if not self.layer_types or set(self.layer_types) - {FULL, SLIDING}:
            raise ValueError(f"layer_types: expected {FULL} or {SLIDING} for every layer, got {self.layer_types}")
        if self.head_dim % 2 or self.global_head_dim % 2:
            raise ValueError(
                f"head_dim, global_head_dim: expected even sizes, got {self.head_dim} and {self.global_head_dim}"
            )
        if self.clusters and (self.vocab_size % self.clusters or self.clusters_read > self.clusters):
            raise ValueError(
                f"clusters: expected a divisor of vocab_size {self.vocab_size} and at most as many read, got "
                f"{self.clusters} and {self.clusters_read}"
            )

    def dim(self, kind: str) -> int:
        return self.head_dim if kind == SLIDING else self.global_head_dim


@method(
    "gemma4_assistant",
    domain="vlm",
    kind="drafter",
    title="Gemma 4 assistant",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=14,
    about="layers that read the target's own keys and values",
)
class Gemma4Assistant(ShapedDrafter):
    """Drafts token by token from [embedding of the last token ; state], with the target's own cache. Exact.

    The first state is the target's behind the token before the root; the next states are the assistant's own. Its
    layers have queries alone. They attend to the keys and values that the target's last layer of each type caches.
    Every query stands at the root's position. Draft tokens never see each other, so a level of a tree takes one pass
    without a cache.
    """

    kind: ClassVar[str] = "gemma4_assistant"
    config_class = Gemma4AssistantConfig
    name = "gemma4 assistant"
    published_as = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
    trainable: ClassVar[bool] = False
    any_target: ClassVar[bool] = False
    config: Gemma4AssistantConfig

    def __init__(self, config: Gemma4AssistantConfig):
        super().__init__(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.pre_projection = nn.Linear(2 * config.backbone_hidden_size, width, bias=False)
        self.layers = nn.ModuleList(
            QueryLayer(width, config.intermediate_size, config.num_attention_heads, config.dim(kind), eps)
            for kind in config.layer_types
        )
        self.norm = nn.RMSNorm(width, eps=eps)
        self.post_projection = nn.Linear(width, config.backbone_hidden_size, bias=False)
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.masked_embedding = None
        if config.clusters:
            self.masked_embedding = ClusteredHead(width, config.vocab_size, config.clusters, config.clusters_read)

    def new_state(self, target: object) -> Gemma4AssistantState:
        return Gemma4AssistantState(self, target)

    def turnings(self, position: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return cos and sin at positions int64 [B], by type of layer, [B, 1, 2, dim] each."""
        config = self.config
        return {
            FULL: rotary_at(position, config.global_head_dim, config.full_theta, config.full_share, dtype),
            SLIDING: rotary_at(position, config.head_dim, config.sliding_theta, 1.0, dtype),
        }

    def forward(
        self, embeds: Tensor, states: Tensor, turnings: dict[str, Tensor], target_slots: dict[str, tuple]
    ) -> Tensor:
        """Return the normed rows [B, n, hidden_size] of the last tokens, of embeddings and states [B, n,
        backbone_hidden_size]. `target_slots` are, by type of layer, keys, values and bias as `QueryLayer` takes them.
        """
        x = small_linear(torch.cat([embeds, states], -1), self.pre_projection.weight)
        for kind, layer in zip(self.config.layer_types, self.layers, strict=True):
            x = layer(x, turnings[kind], *target_slots[kind])
        return rms_norm(self.norm, x)

    def states(self, rows: Tensor) -> Tensor:
        """Return the states [B, n, backbone_hidden_size] for the next tokens, from the rows of `forward`."""
        return small_linear(rows, self.post_projection.weight)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return the float32 logits [B, n, V] of the rows of `forward`."""
        table, clustered = self.embed_tokens.weight, self.masked_embedding
        return (small_linear(out, table) if clustered is None else clustered(out, table)).float()

    def sources(self, parts: Parts) -> dict[str, int]:
        """Return, by type of layer, the target's last layer that caches keys and values of that type."""
        types, indices = parts.plan.types or (), {}
        for index, (kind, layer) in enumerate(zip(types, parts.plan.layers, strict=False)):
            if layer.slots:
                indices[kind] = index
        return indices

    def check(self, parts: Parts) -> None:
        self.check_sizes(parts, "backbone_hidden_size", "use the target's own assistant")
        if missing := sorted(set(self.config.layer_types) - set(self.sources(parts))):
            raise ValueError(
                f"layer_types: expected a target with layers of {' and '.join(missing)} that keep keys, "
                f"got {type(parts.model).__name__}; use the target's own assistant"
            )

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Return the drafter of a published checkpoint, with sizes in `text_config`. A head that scores clusters
        (`use_ordered_embeddings`) has two more tensors. Own keys, experts and per-layer embeddings are refused."""
        drafter = cls(_assistant_config(config))
        state = {name.removeprefix("model."): value for name, value in state.items()}
        names = {name: (name,) for name in ("pre_projection.weight", "post_projection.weight", "embed_tokens.weight")}
        names["norm.weight"] = ("norm.weight",)
        for index in range(len(drafter.layers)):
            prefix = f"layers.{index}."
            names |= {f"{prefix}{x.rpartition('.')[2]}.weight": (f"{prefix}{x}.weight",) for x in _LAYER_TENSORS}
            names[f"{prefix}layer_scalar"] = (f"{prefix}layer_scalar",)
        if drafter.masked_embedding is not None:
            names |= {
                f"masked_embedding.{x}": (f"masked_embedding.{x}",) for x in ("token_ordering", "centroids.weight")
            }
        return fill_drafter(drafter, state, names, ("lm_head.weight",))


class Gemma4AssistantState(HeadState):
    """The state of a request, without keys and values: every round reads the target's committed slots again."""

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.sources = self.drafter.sources(target.parts)
        self.target_slots: dict[str, tuple] = {}
        self.turnings: dict[str, Tensor] = {}

    @torch.no_grad()
    def ready(self, depth: int | None = None) -> None:
        if self.root is None:
            self._look()
            self.root = self._rows(self.target.pending[:, None], self.source)[:, 0]

    def _look(self) -> None:
        target, config = self.target, self.drafter.config
        self.turnings = self.drafter.turnings(target.next_position, self.source.dtype)
        for kind in set(config.layer_types):
            reach = config.sliding_window + 1 if kind == SLIDING else 0
            keys, values, bias = committed_slots(target.cache, self.sources[kind], reach)
            if keys.shape[-1] != config.dim(kind) or config.num_attention_heads % keys.shape[1]:
                raise ValueError(
                    f"drafter: expected heads of size {keys.shape[-1]} in groups of {keys.shape[1]} as the target's "
                    f"{kind} has, got {config.num_attention_heads} of size {config.dim(kind)}; use the target's own"
                )
            self.target_slots[kind] = keys, values, bias

    def _rows(self, token: Tensor, states: Tensor) -> Tensor:
        self.passes += 1
        return self.drafter(self.target.parts.embed(token), states, self.turnings, self.target_slots)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return the rows [B, n, F] behind draft tokens int64 [B, n], which were drawn from the rows `hidden`."""
        return self._rows(token, self.drafter.states(hidden))


_LAYER_TENSORS = ("self_attn.q_proj", "self_attn.q_norm", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
          "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
          "post_feedforward_layernorm")  # fmt: skip
_TEXT_FIELDS = ("num_attention_heads", "hidden_size", "vocab_size", "intermediate_size", "layer_types", "head_dim",
         "sliding_window")  # fmt: skip


def _assistant_config(config: Mapping[str, Any]) -> Gemma4AssistantConfig:
    text = config.get("text_config") or {}
    missing = [name for name in _TEXT_FIELDS if name not in text]
    missing += ["backbone_hidden_size"] if "backbone_hidden_size" not in config else []
    if missing:
        raise ValueError(
            f"config: expected the fields of an assistant and its text_config, got none for {', '.join(missing)}"
        )
    for name in ("enable_moe_block", "hidden_size_per_layer_input", "attention_bias", "use_double_wide_mlp"):
        if text.get(name):
            raise ValueError(f"{name}: expected an assistant without it, got {text[name]!r}; it is not supported")
    rope = text.get("rope_parameters") or {}
    full, sliding = rope.get(FULL) or {}, rope.get(SLIDING) or {}
    for kind, fields, known in ((FULL, full, ("default", "proportional")), (SLIDING, sliding, ("default",))):
        if fields.get("rope_type", "default") not in known or fields.get("factor", 1.0) != 1.0:
            raise ValueError(f"rope_parameters: expected {' or '.join(known)} positions of {kind}, got {dict(fields)}")
    ordered = bool(config.get("use_ordered_embeddings"))
    share = full.get("partial_rotary_factor", 1.0) if full.get("rope_type") == "proportional" else 1.0
    return Gemma4AssistantConfig(
        **{name: text[name] for name in _TEXT_FIELDS},
        backbone_hidden_size=config["backbone_hidden_size"],
        global_head_dim=_head_of_full_layers(text),
        sliding_theta=float(sliding.get("rope_theta", 10000.0)),
        full_theta=float(full.get("rope_theta", 1000000.0)),
        full_share=float(share),
        rms_norm_eps=text.get("rms_norm_eps", 1e-6),
        clusters=config.get("num_centroids", 2048) if ordered else 0,
        clusters_read=config.get("centroid_intermediate_top_k", 32),
    )


def _head_of_full_layers(text: Mapping[str, Any]) -> int:
    """Return `global_head_dim`, or the width in newer transformers' field for layers that differ."""
    if text.get("global_head_dim"):
        return text["global_head_dim"]
    first = next((n for n, kind in enumerate(text["layer_types"]) if kind == FULL), 0)
    own = (text.get("per_layer_config") or {}).get(str(first)) or {}
    return own.get("head_dim", text["head_dim"])
