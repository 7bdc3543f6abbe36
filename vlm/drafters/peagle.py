"""P-EAGLE: EAGLE-3 whose depths are drafted side by side, in a single pass over accepted pairs and masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.draft import gather_nodes
from mmspec.io.checkpoints import load_part
from mmspec.io.validation import Count, Size
from mmspec.methods import method
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.published_files import for_vocabulary, plain_names
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
from mmspec.vlm.drafters.eagle3.published import eagle3_fields, filled, published_levels
from mmspec.vlm.drafters.eagle3.state import Eagle3State


@dataclass(frozen=True, slots=True)
class PEagleConfig(Eagle3Config):
    num_hidden_layers: int = 4
    own_embedding: bool = True
    mask_token_id: Count = 0  # its embedding stands for a token to draft
    depths: Size = 7  # the tokens of a draft

    def __post_init__(self) -> None:
        Eagle3Config.__post_init__(self)
        if self.mask_token_id >= self.vocab_size or not self.own_embedding:
            raise ValueError(
                f"mask_token_id: expected a token below vocab_size {self.vocab_size} and own_embedding, got "
                f"{self.mask_token_id} and {self.own_embedding}"
            )


@method(
    "peagle",
    domain="vlm",
    kind="drafter",
    title="P-EAGLE",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=7,
    about="all tokens of a draft in one pass of EAGLE-3's layers",
    paper="P-EAGLE: Parallel-Drafting EAGLE with Scalable Training",
)
class PEagle(Eagle3):
    """Drafts all depths in a single pass. Exact in every shape.

    Paper: "P-EAGLE: Parallel-Drafting EAGLE with Scalable Training". Depth 1 is EAGLE-3's. Each further depth reads the
    embedding of a mask token and a learned state in place of the pair. It stands a position further, and sees all pairs
    and the masks before it. Distributions are marginals, as DFlash's, and drafts take the same forms. The embedding is
    the drafter's own, since training changed it.
    """

    kind: ClassVar[str] = "peagle"
    config_class = PEagleConfig
    name, steps = "p-eagle", ("block", 1, 3)
    published_as = ("PEagleSpeculator", "PEagleDraftModel", "speculators:peagle")
    trainable: ClassVar[bool] = False
    writers: ClassVar[Mapping[str, str]] = {"vllm": "mmspec.vlm.export.eagle:peagle_speculators"}
    config: PEagleConfig

    def __init__(self, config: PEagleConfig):
        super().__init__(config)
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, self.fc.in_features))
        self.trained_depth = config.depths
        block = FixedLength(config.depths)
        self.shapes = (Chain(block), Chain(block, "deterministic"))

    def new_state(self, target: object) -> PEagleState:
        return PEagleState(self, target)

    def masks(self, batch: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the embeddings [B, count, H] and the states [B, count, levels * H] of `count` masks."""
        embed = self.embed_tokens.weight[self.config.mask_token_id].expand(batch, count, -1)
        return embed, self.mask_hidden.to(embed.dtype).expand(batch, count, -1)

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Read an EAGLE-3 file with `mask_hidden`. A draft has the first proposal method's `speculative_tokens`, else
        `num_depths`, else 7. `norm_output` makes no difference, since no output is read again."""
        state, config = for_vocabulary(plain_names(state), config, target)
        if "mask_hidden" not in state:
            raise ValueError(
                "sd: expected mask_hidden, the state of a token to draft, got none; load a file without it as 'eagle3'"
            )
        mask = config.get("mask_token_id")
        mask = default_mask(target) if mask is None else mask
        methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
        depths = methods[0].get("speculative_tokens") or config.get("num_depths") or 7
        fields = eagle3_fields(state, config) | {"norm_output": False, "own_embedding": True}
        levels = published_levels(state, config, target)
        return filled(
            cls(PEagleConfig(**fields, levels=levels, mask_token_id=mask, depths=depths)), state, "mask_hidden"
        )


def default_mask(target: nn.Module | None) -> int:
    """Return the mask token by the rule of the library's training: the first that exists of the tokenizer's mask token,
    the first id behind its tokens with an embedding, and the padding, end and unknown tokens."""
    source = "" if target is None else str(target.config.name_or_path)
    if not source or not Path(source).is_dir():
        raise ValueError(
            "config: expected the field mask_token_id, got none; give the config the file was made with, or a "
            "target loaded from a folder with its tokenizer"
        )
    tokenizer = load_part(AutoTokenizer, source)
    added = len(tokenizer) if len(tokenizer) < take_apart(target).vocab_size else None
    ids = (tokenizer.mask_token_id, added, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    mask = next((token for token in ids if token is not None), None)
    if mask is None:
        raise ValueError(
            f"config: expected the field mask_token_id, got none, and the tokenizer of {source} has no token for "
            "it; give the config the file was made with"
        )
    return mask


class PEagleState(Eagle3State):
    """A pass reads accepted pairs and drafts behind them; the masks behind the pairs in the cache are not counted.
    `rows` [B, D, H] are the outputs that each depth draws from, `scored` float32 [B, D, V] their log-weights."""

    independent = True

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.rows: Tensor | None = None
        self.scored: Tensor | None = None

    @property
    def slots_ahead(self) -> int:
        return self.drafter.config.depths

    def catch_up(self, depth: int | None = None) -> None:
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
        )  # [B, n]; masks follow each row's last pair
        real = (node >= pairs) | (node < count[:, None])
        seen = (node <= node[:, None]) & real[:, None] | torch.eye(len(node), dtype=torch.bool, device=node.device)
        position = self.next_position[:, None] + ahead
        biases, rotary = self.windowed(self.cache.bias(seen, attend.dtype), position, 0), self.rotary[position]
        self.passes += 1
        out = drafter(attend, carry, rotary, self.cache, biases)
        last = (count - 1).clamp(min=0)[:, None]
        self.rows = torch.cat([gather_nodes(out, last), out[:, pairs:]], 1)
        self.scored = drafter.own_logits(self.rows, 1, target.parts.head) + self.ruling
        self.root = self.rows[:, 0]
        self.next_position = self.next_position + count
        self.cache.advance(self.counts)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        return self.scored[:, depth - 1 : depth].expand(-1, out.shape[1], -1)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return the next depth's row for all nodes of a level, without a forward pass."""
        return self.rows[:, depth : depth + 1].expand(-1, token.shape[1], -1)
