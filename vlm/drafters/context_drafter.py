"""What block-parallel drafters share: context from the target's states, and a block of tokens from one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.drafting.layer import rms_normed
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length import FixedLength
from mmspec.vlm.architectures import Parts
from mmspec.vlm.capture import Leaving
from mmspec.vlm.drafters.after_head import AfterHead
from mmspec.vlm.drafters.context_config import ContextConfig
from mmspec.vlm.drafters.context_layer import ContextLayer
from mmspec.vlm.drafters.eagle3.modules import ReducedHead
from mmspec.vlm.drafters.flash.modules import LatentPool
from mmspec.vlm.drafters.picture_pool import pooled_pictures
from mmspec.vlm.drafters.prompt_view import Spans
from mmspec.vlm.drafters.shaped import ShapedDrafter
from mmspec.vlm.drafters.slots import Slots, pack


class ContextDrafter(ShapedDrafter):
    """Base of drafters whose layers read one context state for each committed token, made of the target's states at `taps`,
    and a block of the root and mask tokens, whose rows each predict a token.

    Embedding and head are the target's and are not stored here. A committed token's keys and values never change; those of
    a block are never kept. Subclasses make a level's law depend on the token drafted before it with `after` and `logits`.
    Weights and settings only: a request's state is what `open` returns.
    """

    config: ContextConfig
    independent = True  # whether a level's law is the same whatever was drafted above it

    def __init__(self, config: ContextConfig):
        super().__init__(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.levels = tuple(Leaving(layer) for layer in config.taps)
        self.fc = nn.Linear(len(config.taps) * config.tapped, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(self.new_layer() for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(width, eps=eps)
        kept = config.draft_vocab_size
        self.head = ReducedHead(width, config.vocab_size, kept) if kept else None
        self.pool = LatentPool(config.latents, width) if config.latents else None
        block = FixedLength(config.drafted)
        # rows that do not see each other's tokens make poor draws: each is likely, together they make no sense
        self.shapes = (Chain(block), Chain(block, "deterministic" if self.independent else "without_replacement"))

    def new_layer(self) -> ContextLayer:
        """One of its layers, untrained."""
        return ContextLayer(self.config.layer())

    @property
    def layer(self) -> ContextLayer:
        """The first layer, whose rotary positions are those of all."""
        return self.layers[0]

    @property
    def own_depths(self) -> int:
        return self.config.drafted

    @property
    def most_levels(self) -> int:
        return self.config.drafted

    def open_without_prefill(self, target: object) -> object:
        """State of one request whose prompt is read before the first draft."""
        from mmspec.vlm.drafters.context_state import ContextState

        self.check(target.parts)
        return ContextState(self, target)

    def context(self, states: Tensor) -> Tensor:
        """Context states [B, n, H] of the target's states at the taps side by side, [B, n, taps * width]."""
        return rms_normed(self.hidden_norm, F.linear(states, self.fc.weight))

    def read(self, states: Tensor, real: Tensor | None, picture: Tensor) -> Slots:
        """What of a prompt becomes context: every token, or of a picture as many rows as it is pooled into.

        states: as in `context`.   real: bool [B, n], None for all.   picture: int64 [B, n], see `pictures`.
        """
        context, keep = self.pooled(self.context(states), real, picture)
        return pack(context, context, keep, torch.ones(states.shape[:2], dtype=torch.bool, device=states.device))

    def pooled(self, context: Tensor, real: Tensor | None, picture: Tensor) -> tuple[Tensor, Tensor | None]:
        """Context states [B, n, H] with pictures pooled, and which of their rows are left, bool [B, n], None for all; what
        is left counts as one position a row."""
        spans = None if self.pool is None else Spans.of(picture)
        if spans is None:
            return context, real
        keep = torch.ones_like(picture, dtype=torch.bool) if real is None else real.clone()
        return pooled_pictures(self.pool, self.config.latents, context, keep, context, spans), keep

    def block(self, root: Tensor) -> Tensor:
        """The ids of a block, int64 [..., block_size], behind roots int64 [...]."""
        masks = root.new_full((*root.shape, self.config.block_size - 1), self.config.mask_token_id)
        return torch.cat([root[..., None], masks], -1)

    def forward(self, embeds: Tensor, rotary: Tensor, cache: SlotCache, biases: Sequence[Tensor | None]) -> Tensor:
        """Normed outputs [B, n, H] of blocks' embeddings [B, n, H], whose keys and values go to `cache`, behind the context.

        rotary: rows of `layer.rotary()` at their positions.   biases: one for each layer, see `context_layer.biases`.
        """
        rows = embeds * self.config.embedding_scale if self.config.embedding_scale != 1 else embeds
        for index, (layer, bias) in enumerate(zip(self.layers, biases, strict=True)):
            rows = layer(rows, rotary, cache, index, bias)
        return rms_normed(self.norm, rows)

    def drafting(self, rows: Tensor) -> Tensor:
        """The rows that predict a token, [..., drafted, H], of a block's [..., block_size, H]."""
        return rows if self.config.from_root else rows[..., 1:, :]

    def unary(self, rows: Tensor, head: nn.Module, after: AfterHead | None = None) -> Tensor:
        """float32 [..., V], what the head says of rows [..., H] alone; -inf for tokens that are never drafted.

        after: what the target does to its head's logits, unless the drafter's own config says so.
        """
        if self.head is not None:
            return self.head.spread(self.head(rows))
        own = AfterHead(self.config.output_multiplier, self.config.softcap)
        return (after if after is not None and own == AfterHead() else own)(head(rows).float())

    def after(self, row: Tensor, token: Tensor, before: Tensor | None) -> Tensor:
        """What a level's law is made of, [B, n, F], the row itself first.   row: [B, 1, H].   token: int64 [B, n], the tokens
        right before it.   before: [B, n, F], what these were drawn from; None for the root."""
        return row.expand(-1, token.shape[1], -1)

    def seen(self, out: Tensor) -> Tensor:
        """What length controls are shown of `out` [B, n, F]: the row."""
        return out[..., : self.config.hidden_size]

    def logits(self, out: Tensor, depth: int, unary: Tensor) -> Tensor:
        """float32 [B, n, V], log-weights of a level.   out: [B, n, F], of `after`.   unary: float32 [B, 1, V], of its row."""
        return unary.expand(-1, out.shape[1], -1)

    def walked(self, rows: Tensor, before: Tensor, head: nn.Module) -> tuple[Tensor, Tensor]:
        """What blocks say along texts, as drafting these would: float32 [N, D, V], the log-weights of every level, and
        [N, D, F], what these are made of.

        rows: [N, D, H], of `drafting`.   before: int64 [N, D], the token right before each level's.
        """
        unary, made, said = self.unary(rows, head), [], []
        if self.independent:
            return unary, rows
        for depth in range(rows.shape[1]):
            place = slice(depth, depth + 1)
            made.append(self.after(rows[:, place], before[:, place], made[-1] if made else None))
            said.append(self.logits(made[-1], depth + 1, unary[:, place]))
        return torch.cat(said, 1), torch.cat(made, 1)

    def acceptance(self, out: Tensor) -> Tensor | None:
        """The logit of a level's token being accepted, [...], of what the level is made of, [..., F]; None where it is not
        predicted."""
        return None

    def check(self, parts: Parts) -> None:
        super().check(parts)
        config, tapped = self.config, max(self.config.taps)
        if config.tapped != parts.hidden_size:
            raise ValueError(f"drafter: expected target_hidden_size {parts.hidden_size} as in the target, got "
                             f"{config.tapped}; train one for this target")  # fmt: skip
        if tapped >= parts.layers:
            raise ValueError(f"taps: expected layers 0 to {parts.layers - 1} of the target, got {tapped}; train one for this "
                             "target")  # fmt: skip
        rows = parts.embed.weight.shape[0]
        if config.mask_token_id >= rows:
            raise ValueError(f"mask_token_id: expected a row of the target's embedding, 0 to {rows - 1}, got "
                             f"{config.mask_token_id}; train one for this target")  # fmt: skip
