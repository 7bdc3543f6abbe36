"""Base of drafters that draft a block of tokens in a single pass over the target's states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.drafting.layer import rms_norm
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.cache import SlotCache
from mmspec.kernels.small_linear import small_linear
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.block_layers import BlockDrafterConfig, BlockLayer, attention_biases, taps_of
from mmspec.vlm.drafters.base.block_vocabulary import BlockVocabulary
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.base.picture_pooling import LatentPool, pool_pictures
from mmspec.vlm.drafters.base.prompt_slots import PictureSpans, PromptSlots, pack_slots, picture_numbers
from mmspec.vlm.drafters.base.trained_drafter import LogitTransform, shared_embedding
from mmspec.vlm.hidden_states import LayerOutput

Lesson = tuple[float, Tensor]  # the weight of a loss, and the features of its distributions, [N, D, F]


class BlockDrafter(BlockVocabulary):
    """Base of drafters that draft a block of tokens in one pass, as DFlash does. The layers read a context state per
    committed token, computed from the target's states at `taps`, and a block: the root and mask tokens. Each row
    predicts a token. Embedding and head are the target's, and keys and values of a block are never kept. Subclasses
    override `after` and `logits` to condition a level's distribution on the previous draft token."""

    steps = ("block", 5, 5)
    independent = True  # whether a level's distribution ignores the tokens drafted above it

    def __init__(self, config: BlockDrafterConfig):
        super().__init__(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.trained_depth = self.own_depths = config.drafted
        self.levels = tuple(LayerOutput(layer) for layer in config.taps)
        self.fc = nn.Linear(len(config.taps) * config.tapped, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(self.new_layer() for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(width, eps=eps)
        self.pool = LatentPool(config.latents, width) if config.latents else None
        block = FixedLength(config.drafted)
        # independent rows make poor samples: each token is likely, but together they make no sense
        self.shapes = (Chain(block), Chain(block, "deterministic" if self.independent else "without_replacement"))

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Spread the taps over the target's depth; the mask token is the last embedding row that is no placeholder."""
        layers, rows = sizes.get("num_hidden_layers", 5), parts.embed.weight.shape[0]
        unseen = set(range(max(rows - len(parts.placeholders) - 1, 0), rows)) - set(parts.placeholders)
        taps = taps_of(parts.layers, layers)
        own = {"num_hidden_layers": layers, "taps": taps, "mask_token_id": max(unseen)}
        return super().sizes_for(parts, sizes) | own

    def new_layer(self) -> BlockLayer:
        """Return an untrained layer."""
        return BlockLayer(self.config.layer())

    @property
    def layer(self) -> BlockLayer:
        """The first layer, whose rotary positions all layers share."""
        return self.layers[0]

    def new_state(self, target: object) -> BlockDrafterState:
        return BlockDrafterState(self, target)

    def context(self, states: Tensor) -> Tensor:
        """Return the context states [B, n, H] of the target's states at the taps, [B, n, taps * width]."""
        return rms_norm(self.hidden_norm, small_linear(states, self.fc.weight))

    def read(self, states: Tensor, real: Tensor | None, picture: Tensor) -> PromptSlots:
        """Return a slot per token of a prompt, and for pictures as many slots as they are pooled into, from `states` as
        in `context`; `real`, bool [B, n], is None without padding, and `picture` as in `picture_numbers`."""
        context, keep = self.pooled(self.context(states), real, picture)
        return pack_slots(context, context, keep, torch.ones(states.shape[:2], dtype=torch.bool, device=states.device))

    def pooled(self, context: Tensor, real: Tensor | None, picture: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the context states [B, n, H] with pictures pooled, and a mask of the remaining rows, None for all;
        each of these counts as one position. `real` and `picture` are as in `read`."""
        spans = None if self.pool is None else PictureSpans.of(picture)
        if spans is None:
            return context, real
        keep = torch.ones_like(picture, dtype=torch.bool) if real is None else real.clone()
        return pool_pictures(self.pool, self.config.latents, context, keep, context, spans), keep

    def block(self, root: Tensor) -> Tensor:
        """Return the token ids of blocks, int64 [..., block_size], behind roots int64 [...]."""
        masks = root.new_full((*root.shape, self.config.block_size - 1), self.config.mask_token_id)
        return torch.cat([root[..., None], masks], -1)

    def forward(self, embeds: Tensor, rotary: Tensor, cache: SlotCache, biases: Sequence[Tensor | None]) -> Tensor:
        """Return the normed outputs [B, n, H] of blocks from embeddings [B, n, H]; their keys and values are written to
        `cache` behind the context. `rotary` has rows of `layer.rotary()`, `biases` are those of `attention_biases`."""
        rows = embeds * self.config.embedding_scale if self.config.embedding_scale != 1 else embeds
        for index, (layer, bias) in enumerate(zip(self.layers, biases, strict=True)):
            rows = layer(rows, rotary, cache, index, bias)
        return rms_norm(self.norm, rows)

    def drafting(self, rows: Tensor, earlier: Tensor | None = None) -> Tensor:
        """Return the features of the levels before any token is drafted, [..., drafted, F], of rows [..., block_size,
        H]. `earlier`, int64 [...], is the token before the root, which most drafters do not read."""
        return rows if self.config.from_root else rows[..., 1:, :]

    def after(self, row: Tensor, token: Tensor, before: Tensor | None) -> Tensor:
        """Return the features of a level's distribution, [B, n, F], which begin with its row [B, 1, H], behind tokens
        int64 [B, n] drawn from the features `before`, [B, n, F] or None for the root."""
        return row.expand(-1, token.shape[1], -1)

    def seen(self, out: Tensor) -> Tensor:
        """Return the part of `out` [B, n, F] that length controls read: the row."""
        return out[..., : self.config.hidden_size]

    def logits(self, out: Tensor, unary: Tensor) -> Tensor:
        """Return the log-weights [B, n, k] of a level, from `after`'s features and its row's scores [B, 1, k]."""
        return unary.expand(-1, out.shape[1], -1)

    def walk(self, rows: Tensor, before: Tensor) -> Tensor:
        """Return the features [N, D, F] of all levels along texts, as drafting these texts computes them. Rows [N, D,
        H] come from `drafting`; `before`, int64 [N, D], are the tokens right before each level's."""
        if self.independent:
            return rows
        features: list[Tensor] = []
        for depth in range(rows.shape[1]):
            place = slice(depth, depth + 1)
            features.append(self.after(rows[:, place], before[:, place], features[-1] if features else None))
        return torch.cat(features, 1)

    def lessons(self, rows: Tensor, before: Tensor, best: Callable[[Tensor], Tensor]) -> list[Lesson]:
        """Return the losses of training, the first of which follows the text itself; `rows` and `before` are as in
        `walk`. `best` maps features [N, D, F] to the likeliest tokens, int64 [N, D]."""
        return [(1.0, self.walk(rows, before))]

    def scores(self, out: Tensor, head: nn.Module) -> Tensor:
        """Return the float32 log-weights [n, k] of levels from the features [n, F] that `walk` returned."""
        unary = self.unary(out[:, : self.config.hidden_size], head)
        return self.logits(out[:, None], unary[:, None])[:, 0]

    def acceptance(self, out: Tensor) -> Tensor | None:
        """Return the logit [...] that a level's token is accepted, from features [..., F]; None if unsupported."""
        return None

    def check(self, parts: Parts) -> None:
        super().check(parts)
        config, tapped = self.config, max(self.config.taps)
        if config.tapped != parts.hidden_size:
            raise ValueError(
                f"drafter: expected target_hidden_size {parts.hidden_size} as in the target, got "
                f"{config.tapped}; train a drafter for this target"
            )
        if tapped >= parts.layers:
            raise ValueError(
                f"taps: expected layers 0 to {parts.layers - 1} of the target, got {tapped}; train a drafter "
                "for this target"
            )
        rows = parts.embed.weight.shape[0]
        if config.mask_token_id >= rows:
            raise ValueError(
                f"mask_token_id: expected a row of the target's embedding, 0 to {rows - 1}, got "
                f"{config.mask_token_id}; train a drafter for this target"
            )


class BlockDrafterState(FeatureState):
    """Keys and values of a context slot for each committed token; those of a block are written behind them and never
    counted. `rows`, float [B, D, H], follow the pending token; `unary`, float32 [B, D, k], are their scores."""

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.cache = SlotCache(drafter.config.num_hidden_layers, 0)
        self.after = LogitTransform.of(target.parts)
        self.rows: Tensor | None = None
        self.unary: Tensor | None = None

    @property
    def independent(self) -> bool:
        return self.drafter.independent

    @property
    def slots_ahead(self) -> int:
        return self.drafter.config.block_size

    def stale_slots(self, target: object) -> int:
        """Return the number of stale slots; a slot belongs to a single token, so cached tokens are not read again."""
        return target.turn.forget - (target.turn.before is not None)

    def read_prompt(self) -> None:
        """Add the context of the prompt's new tokens but the last, whose states come with the first pass."""
        target, states = self.target, self.target.prompt_hidden[:, :-1]
        self.rows = self.unary = self.root = None
        real = None if target.padding is None or self.cache.width else ~target.padding[:, :-1]
        ids = target.prompt[:, target.prompt.shape[1] - states.shape[1] - 1 : -1]
        slots = self.drafter.read(
            states, real, picture_numbers(ids, target.parts.placeholders, target.parts.tokens_per_image)
        )
        self._reach(slots.attend.dtype)
        self.absorb(slots.attend, self.next_position[:, None] + slots.position, slots.count.tolist())
        self.next_position = self.next_position + slots.next_position

    def absorb(self, context: Tensor, position: Tensor, counts: list[int]) -> None:
        """Add the first `counts[b]` context states of [B, n, H] for each row b, at positions int64 [B, n]."""
        if not context.shape[1]:  # a prompt of one token
            layer = self.drafter.layer.config
            empty = context.new_empty(len(counts), layer.groups, 0, layer.dim)
            return self.cache.reserve(empty, empty)
        rotary = self.rotary[position]
        for index, layer in enumerate(self.drafter.layers):
            self.cache.write(index, *layer.context(context, rotary))
        self.cache.advance(counts)

    def catch_up(self, depth: int | None = None) -> None:
        """Add the context of the tokens accepted since the last draft, then compute the block behind it."""
        self.read_pending()
        self.draw_block(self.deepest if depth is None else depth)

    def read_pending(self) -> None:
        states, _, self.counts = self.pending_features.take()
        context = self.drafter.context(states)
        self._reach(context.dtype)
        ahead = torch.arange(states.shape[1], device=states.device)
        self.absorb(context, self.next_position[:, None] + ahead, self.counts)
        self.next_position = self.next_position + torch.tensor(self.counts, device=states.device)

    def draw_block(self, depth: int) -> None:
        """Run a pass over the block behind the pending token, and score its first `depth` rows that draft."""
        drafter, target = self.drafter, self.target
        embeds = shared_embedding(target.parts.embed, drafter.block(target.pending))
        ahead = torch.arange(embeds.shape[1], device=embeds.device)
        self.passes += 1
        rotary = self.rotary[self.next_position[:, None] + ahead]
        rows = drafter(
            embeds, rotary, self.cache, attention_biases(drafter.config, self.cache, embeds.shape[1], embeds.dtype)
        )
        self.rows = self.drafting(rows)[:, :depth]
        self.unary = (
            drafter.unary(self.rows[..., : drafter.config.hidden_size], target.parts.head, self.after) + self.ruling
        )
        self.root = drafter.after(self.rows[:, :1], target.pending[:, None], None)[:, 0]

    def drafting(self, rows: Tensor) -> Tensor:
        return self.drafter.drafting(rows)

    def feature(self, out: Tensor, depth: int) -> Tensor:
        return self.drafter.seen(out)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """Return float32 logits [B, n, k] for the level at `depth`, from 1; visual placeholders are ruled out."""
        return self.drafter.logits(out, self.unary[:, depth - 1 : depth])

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return the features of the children of a level of draft tokens int64 [B, n], without a forward pass."""
        return self.drafter.after(self.rows[:, depth : depth + 1], token, hidden)
