"""P-EAGLE: EAGLE-3 whose depths are drafted side by side, in one pass over accepted pairs and masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.draft import gather_nodes
from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_norm
from mmspec.core.drafting.shapes import Chain, shape_of
from mmspec.core.length import FixedLength
from mmspec.io.pretrained import fill_drafter, layer_names
from mmspec.methods import method
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
from mmspec.vlm.drafters.eagle3.published import check_vocabulary, eagle3_fields, published_levels, tensor_names


class PEagleLayer(DraftLayer):
    """A Llama layer with its first norm."""

    def __init__(self, config: LayerConfig):
        super().__init__(config)
        self.input_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def heads(self, attend: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `DraftLayer.heads`; what it reads is normed first."""
        return super().heads(rms_norm(self.input_norm, attend), rotary)


@dataclass(frozen=True, slots=True)
class PEagleConfig(Eagle3Config):
    """An Eagle3Config, and: mask_token_id: whose own embedding stands for a token not drafted yet.   num_hidden_layers: the
    first is EAGLE-3's.   depths: tokens of a draft."""

    mask_token_id: int = 0
    num_hidden_layers: int = 4
    depths: int = 7

    def __post_init__(self) -> None:
        Eagle3Config.__post_init__(self)
        if min(self.num_hidden_layers, self.depths) < 1 or not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError("expected num_hidden_layers and depths of at least 1 and mask_token_id below vocab_size, got "
                             f"{self}")  # fmt: skip


@method(
    "peagle", domain="vlm", kind="drafter", title="P-EAGLE", exact=True, needs=("weights",), takes=shape_of, order=7,
    about="all tokens of a draft in one pass of EAGLE-3's layers",
    paper="P-EAGLE: Parallel-Drafting EAGLE with Scalable Training",
)  # fmt: skip
class PEagle(Eagle3):
    """Drafts all depths in one pass ("P-EAGLE: Parallel-Drafting EAGLE with Scalable Training").

    Depth 1 is EAGLE-3's. Each further depth reads the embedding of a mask token and one learned state in the place of the
    pair, stands one position further, and sees all pairs and the masks before it. Laws are marginals, as DFlash's, and drafts
    take the same forms. Its embedding is its own, since it was trained.
    """

    kind: ClassVar[str] = "peagle"
    config_class = PEagleConfig
    name = "p-eagle"
    published_as = ("PEagleSpeculator", "speculators:peagle")
    trainable: ClassVar[bool] = False
    writers: ClassVar[Mapping[str, str]] = {"vllm": "mmspec.vlm.export.eagle:peagle_speculators"}
    config: PEagleConfig

    def __init__(self, config: PEagleConfig):
        super().__init__(config)
        width = config.hidden_size
        self.rest = nn.ModuleList(PEagleLayer(LayerConfig.of(config)) for _ in range(config.num_hidden_layers - 1))
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, len(config.levels) * width))
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.trained_depth = config.depths
        block = FixedLength(config.depths)
        self.shapes = (Chain(block), Chain(block, "deterministic"))

    def new_state(self, target: object) -> PEagleState:
        return PEagleState(self, target)

    def masks(self, batch: int, count: int) -> tuple[Tensor, Tensor]:
        """What `count` masks are read as: embeddings [B, count, H] and states [B, count, levels * H]."""
        embed = self.embed_tokens.weight[self.config.mask_token_id].expand(batch, count, -1)
        return embed, self.mask_hidden.to(embed.dtype).expand(batch, count, -1)

    def forward(self, attend: Tensor, carry: Tensor, rotary: Tensor, cache: SlotCache, bias: Tensor | None) -> Tensor:
        """Outputs [B, n, H] of n new slots through all layers, see `DraftLayer.forward`."""
        causal = bias is None and attend.shape[1] > 1
        for index, layer in enumerate((self.layer, *self.rest)):
            query, key, value = layer.heads(attend, rotary)
            keys, values = cache.write(index, key, value)
            attend = carry = layer.finish(carry, layer.attention(query, keys, values, bias, causal))
        return carry

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """An EAGLE-3 file with more layers, `mask_hidden` and a trained embedding. Tokens of a draft: the first proposal
        method's `speculative_tokens`, 7 where the config has none.

        Raises ValueError as EAGLE-3's reader does, and for a config without `mask_token_id`.
        """
        inner = config.get("transformer_layer_config") or config
        layers, mask = inner.get("num_hidden_layers", 1), config.get("mask_token_id")
        if mask is None:
            raise ValueError(
                "config: expected the field mask_token_id, got none; give the config the file was made with"
            )
        one = dict(inner, num_hidden_layers=1)
        fields = eagle3_fields(dict(config, transformer_layer_config=one) if inner is not config else one)
        methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
        drafter = cls(
            PEagleConfig(
                **fields, levels=published_levels(config, target), mask_token_id=mask, num_hidden_layers=layers,
                depths=methods[0].get("speculative_tokens") or 7,
            )
        )  # fmt: skip
        drafter = fill_drafter(
            drafter, state, _names(drafter), ("verifier_lm_head.weight", "verifier_norm.weight", "t2d", "d2t")
        )
        if drafter.head.reduced:
            check_vocabulary(state["d2t"], state["t2d"])
        return drafter


class PEagleState(FeatureState):
    """Reads accepted pairs and drafts behind them in one pass; masks lie behind the pairs and are not counted.

    rows: [B, D, H], the outputs that each depth's token is drawn from.   scored: float32 [B, D, V], their log-weights.
    """

    independent = True

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.cache = SlotCache(drafter.config.num_hidden_layers, 0)
        self.rows: Tensor | None = None
        self.scored: Tensor | None = None

    @property
    def slots_ahead(self) -> int:
        return self.drafter.config.depths

    def view(self) -> PromptView:
        """What is read, with the drafter's own embeddings of text."""
        view, ids = super().view(), self.unread()[0][:, 1:]
        own = self.drafter.embed_tokens(ids.clamp(max=self.drafter.config.vocab_size - 1))
        view.embeds = torch.where(view.picture[..., None] > 0, view.embeds, own)
        return view

    def fill(self, slots: PromptSlots) -> None:
        """Reads slots through all layers: later ones' keys come from earlier ones' outputs."""
        attend, count = slots.attend, slots.attend.shape[1]
        if not count:
            return super().fill(slots)
        seen = torch.ones(1, count, count, dtype=torch.bool, device=attend.device).tril()
        bias = self.bias(seen, 0, attend.dtype) if self.cache.width else None
        rotary = self.rotary[self.next_position[:, None] + slots.position]
        self.passes += 1
        self.drafter(attend, slots.carry, rotary, self.cache, bias)
        self.cache.advance(slots.count.tolist())

    def catch_up(self, depth: int | None = None) -> None:
        """One pass over the pairs noted since the last draft and the masks behind each row's own."""
        drafter, target = self.drafter, self.target
        hidden, value, self.counts = self.pending_features.take()
        batch, pairs = value.shape
        masks = (self.deepest if depth is None else depth) - 1
        blank, states = drafter.masks(batch, masks)
        embeds = torch.cat([drafter.embed_tokens(value), blank], 1)
        attend, carry = drafter.fuse(embeds, torch.cat([hidden, states], 1))
        self._reach(attend.dtype)
        count = torch.tensor(self.counts, device=value.device)
        node = torch.arange(pairs + masks, device=value.device)
        ahead = torch.where(
            node < pairs, node, count[:, None] + node - pairs
        )  # [B, n], masks follow each row's last pair
        real = (node >= pairs) | (node < count[:, None])
        seen = (node <= node[:, None]) & real[:, None] | torch.eye(len(node), dtype=torch.bool, device=node.device)
        bias = self.cache.bias(seen, attend.dtype)
        rotary = self.rotary[self.next_position[:, None] + ahead]
        self.passes += 1
        out = drafter(attend, carry, rotary, self.cache, bias)
        last = (count - 1).clamp(min=0)[:, None]
        self.rows = torch.cat([gather_nodes(out, last), out[:, pairs:]], 1)
        self.scored = drafter.own_logits(self.rows, 1, target.parts.head) + self.ruling
        self.root = self.rows[:, 0]
        self.next_position = self.next_position + count
        self.cache.advance(self.counts)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """float32 [B, n, V or k], see `FeatureState.logits`."""
        return self.scored[:, depth - 1 : depth].expand(-1, out.shape[1], -1)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """The row of the next depth for all nodes of a level; no pass."""
        return self.rows[:, depth : depth + 1].expand(-1, token.shape[1], -1)


def _names(drafter: PEagle) -> dict[str, tuple[str, ...]]:
    names = tensor_names({}, drafter.config) | {name: (name,) for name in ("mask_hidden", "embed_tokens.weight")}
    for index in range(1, drafter.config.num_hidden_layers):
        prefix = f"layers.{index}."
        own = layer_names(prefix) | {"layer.input_norm.weight": (f"{prefix}input_layernorm.weight",)}
        names |= {f"rest.{index - 1}.{name.removeprefix('layer.')}": group for name, group in own.items()}
    return names
