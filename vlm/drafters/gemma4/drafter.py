"""The assistant that ships beside a Gemma 4 model: a few layers that read the target's own keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import rms_normed
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.gemma4.modules import ClusteredHead, QueryLayer, turning
from mmspec.vlm.drafters.shaped import ShapedDrafter

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Gemma4AssistantConfig:
    """hidden_size, intermediate_size, num_attention_heads, layer_types: the assistant's own.   backbone_hidden_size,
    vocab_size: the target's.   head_dim, global_head_dim: of sliding and of full layers, the target's.
    sliding_window: a sliding layer sees one key more than that before the root.
    sliding_theta, full_theta, full_share: bases of rotary positions, and the share of a full layer's head that turns.
    clusters, clusters_read: of a head that scores a few clusters; 0 for one that scores all tokens.
    """

    hidden_size: int
    backbone_hidden_size: int
    vocab_size: int
    intermediate_size: int
    num_attention_heads: int
    layer_types: tuple[str, ...]
    head_dim: int
    global_head_dim: int
    sliding_window: int
    sliding_theta: float = 10000.0
    full_theta: float = 1000000.0
    full_share: float = 0.25
    rms_norm_eps: float = 1e-6
    clusters: int = 0
    clusters_read: int = 32

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_types", tuple(self.layer_types))
        if not self.layer_types or set(self.layer_types) - {FULL, SLIDING}:
            raise ValueError(f"layer_types: expected {FULL} or {SLIDING} for every layer, got {self.layer_types}")
        sizes = (self.hidden_size, self.backbone_hidden_size, self.vocab_size, self.intermediate_size,
                 self.num_attention_heads, self.head_dim, self.global_head_dim, self.sliding_window)  # fmt: skip
        if min(sizes) < 1 or self.head_dim % 2 or self.global_head_dim % 2:
            raise ValueError(f"expected positive sizes and even sizes of heads, got {self}")
        if self.clusters and (self.vocab_size % self.clusters or not 1 <= self.clusters_read <= self.clusters):
            raise ValueError(f"clusters: expected a divisor of vocab_size {self.vocab_size} and at most as many read, got "
                             f"{self.clusters} and {self.clusters_read}")  # fmt: skip

    def dim(self, kind: str) -> int:
        """Size of a head of layers of that type."""
        return self.head_dim if kind == SLIDING else self.global_head_dim


class Gemma4Assistant(ShapedDrafter):
    """Drafts token by token from [embedding of the last token ; state], where the first state is the target's behind the token
    before the root and the next are its own. Its layers have queries alone and attend to what the target's last layer of
    each type keeps of committed tokens; every query stands at the root's position, so that drafted tokens never see each
    other and a level of a tree is one pass without a cache.

    The law on record is what was drawn from, so sampled requests are exact; transformers drafts the best token and judges it
    by the softmax, which is not.
    """

    kind: ClassVar[str] = "gemma4_assistant"
    config_class = Gemma4AssistantConfig
    name = "gemma4 assistant"
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

    def open_without_prefill(self, target: object) -> object:
        """State of one request; nothing of the prompt is read."""
        from mmspec.vlm.drafters.gemma4.state import AssistantState

        self.check(target.parts)
        return AssistantState(self, target)

    def turnings(self, position: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """By type of layer, cos and sin at positions int64 [B], [B, 1, 2, dim]."""
        config = self.config
        return {
            FULL: turning(position, config.global_head_dim, config.full_theta, config.full_share, dtype),
            SLIDING: turning(position, config.head_dim, config.sliding_theta, 1.0, dtype),
        }

    def forward(self, embeds: Tensor, states: Tensor, turnings: dict[str, Tensor], kept: dict[str, tuple]) -> Tensor:
        """Normed rows [B, n, hidden_size] of last tokens' embeddings and states, [B, n, backbone_hidden_size] each.

        kept: by type of layer, keys, values and bias as `QueryLayer` takes them.
        """
        x = F.linear(torch.cat([embeds, states], -1), self.pre_projection.weight)
        for kind, layer in zip(self.config.layer_types, self.layers, strict=True):
            x = layer(x, turnings[kind], *kept[kind])
        return rms_normed(self.norm, x)

    def states(self, rows: Tensor) -> Tensor:
        """What the next token is drafted from, [B, n, backbone_hidden_size], of `forward`'s rows."""
        return F.linear(rows, self.post_projection.weight)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """float32 [B, n, V] of `forward`'s rows."""
        table, clustered = self.embed_tokens.weight, self.masked_embedding
        return (F.linear(out, table) if clustered is None else clustered(out, table)).float()

    def sources(self, parts: Parts) -> dict[str, int]:
        """By type of layer, the target's last layer that keeps keys and values of that type."""
        types, found = parts.plan.types or (), {}
        for index, (kind, layer) in enumerate(zip(types, parts.plan.layers, strict=False)):
            if layer.slots:
                found[kind] = index
        return found

    def check(self, parts: Parts) -> None:
        config = self.config
        for field, own, theirs in (
            ("backbone_hidden_size", config.backbone_hidden_size, parts.hidden_size),
            ("vocab_size", config.vocab_size, parts.vocab_size),
        ):
            if own != theirs:
                raise ValueError(
                    f"drafter: expected {field} {theirs} as in the target, got {own}; take its own assistant"
                )
        if missing := sorted(set(config.layer_types) - set(self.sources(parts))):
            raise ValueError(f"layer_types: expected a target with layers of {' and '.join(missing)} that keep keys, "
                             f"got {type(parts.model).__name__}; take the assistant of this target")  # fmt: skip
