"""Falcon: an LSTM over pairs and a layer whose last k slots see each other, so that a pass drafts k tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig
from mmspec.core.drafting.request_shape import shape_of
from mmspec.core.drafting.unroll import attend_own_draft
from mmspec.core.round.draft import gather_nodes
from mmspec.io.validation import Size
from mmspec.methods import method
from mmspec.vlm.drafters.base.feature_drafter import FeatureConfig, FeatureDrafter, FeatureState
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView, shift_rows
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter


@dataclass(frozen=True, slots=True)
class FalconConfig(FeatureConfig):
    """The sizes of Falcon: a pass drafts `block` tokens. `bias` and `input_norm` have no effect."""

    block: Size = 2

    def layer(self) -> LayerConfig:
        return LayerConfig.of(self, norms_input=True)


class PairLstm(nn.Module):
    """Two LSTM cells over pairs [..., 2 H]; a state [..., 4 H] is the hidden and cell states of the first, then the
    second."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.first, self.second = nn.LSTMCell(2 * width, width), nn.LSTMCell(width, width)

    def step(self, pair: Tensor, state: Tensor) -> Tensor:
        h, c, top, d = state.flatten(0, -2).chunk(4, -1)
        h, c = self.first(pair.flatten(0, -2), (h, c))
        return torch.cat([h, c, *self.second(h, (top, d))], -1).view_as(state)

    def scan(self, pairs: Tensor, state: Tensor) -> Tensor:
        """Return the states [B, n, 4 H] behind each of n pairs [B, n, 2 H], from the state [B, 4 H] before them."""
        states = [state := self.step(pair, state) for pair in pairs.unbind(1)]
        return torch.stack(states, 1) if states else state[:, None, :][:, :0]

    def top(self, state: Tensor) -> Tensor:
        """Return the outputs [..., H] of states [..., 4 H]."""
        return state[..., 2 * self.width : 3 * self.width]


@method(
    "falcon",
    domain="vlm",
    kind="drafter",
    title="Falcon",
    exact=True,
    needs=("weights",),
    takes=shape_of,
    order=5,
    about="an LSTM and a layer that draft two tokens a pass",
    paper="Falcon: Faster and Parallel Inference of Large Language Models through Enhanced Semi-Autoregressive Drafting and "
    "Custom-Designed Decoding Tree",
)
class Falcon(FeatureDrafter):
    """A semi-autoregressive drafter. Exact in every shape.

    Paper: "Falcon: Faster and Parallel Inference of Large Language Models through Enhanced Semi-Autoregressive Drafting and
    Custom-Designed Decoding Tree". The last `block` slots see each other, and slot i of them predicts the feature `block`
    slots further on. Keys and values come from the causal LSTM, so unlike in the public code no accepted slot is read again.
    """

    kind: ClassVar[str] = "falcon"
    config_class = FalconConfig
    name, steps = "falcon", ("block", 1, 3)
    config: FalconConfig

    def __init__(self, config: FalconConfig):
        ShapedDrafter.__init__(self, config)
        self.block = config.block
        self.lstm = PairLstm(config.hidden_size)
        self.layer = DraftLayer(config.layer())

    def new_state(self, target: object) -> FalconState:
        return FalconState(self, target)

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the LSTM's input [B, n, 2 H] and the states themselves, which nothing reads."""
        return torch.cat([embeds, hidden], -1), hidden

    def features(self, tops: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Return the predicted features [B, n, H] of slots with LSTM outputs `tops`, see `DraftLayer.attention`."""
        return self.layer.finish(tops, self.layer.attention(query, key, value, bias))

    def unroll(
        self, slots: PromptSlots, view: PromptView, first: int, depths: int, reveal: Tensor | None = None
    ) -> list[Tensor]:
        """Return the features [B, R - first, H] of the slots from `first` on at each depth, as drafting computes them.
        `reveal`, bool [B, S], are the view's pairs that drafts read with the target's states instead of their own."""
        pairs, count, block = slots.attend, slots.attend.shape[1], self.block
        table = self.layer.rotary_at(torch.arange(count + depths, device=pairs.device)[None], pairs.dtype)[0]
        state = self.lstm.scan(pairs, pairs.new_zeros(len(pairs), 2 * pairs.shape[-1]))
        tops, place = self.lstm.top(state), torch.arange(count, device=pairs.device)
        query, key, value = self.layer.heads(tops, table[slots.position])
        # slot s - ahead of a draft from slot s predicts the feature at depth block - 1 - ahead
        sights = [(ahead, place <= place[:, None] + ahead) for ahead in reversed(range(block))]
        blocks = [shift_rows(self.features(tops, query, key, value, seen), ahead) for ahead, seen in sights]
        outputs = [shift_rows(out, depth) for depth, out in enumerate(blocks)]
        repeat, own, hides = query.shape[1] // key.shape[1], [], place > place[:, None]
        key, value = (x.repeat_interleave(repeat, 1) for x in (key, value))
        for begin in range(block, depths, block):
            ends = []
            for step, feature in enumerate(blocks, begin - block + 1):
                true = _ahead(pairs, step)
                pair = torch.cat([true[..., : feature.shape[-1]], feature], -1)
                if reveal is not None:
                    shown = reveal.gather(1, slots.origin.clamp(min=0))[..., None]
                    pair = torch.where(_ahead(shown, step), true, pair)
                state = self.lstm.step(pair, state)
                query, *drafted = self.layer.heads(self.lstm.top(state), table[slots.position + step])
                ends.append((self.lstm.top(state), query))
                own.append([x.repeat_interleave(repeat, 1) for x in drafted])
            blocks = [self.layer.finish(top, attend_own_draft(q, key, value, hides, own)) for top, q in ends]
            outputs += [shift_rows(out, depth) for depth, out in enumerate(blocks, begin)]
        return [out[:, first:] for out in outputs[:depths]]

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipe with its glancing: 20 epochs of 68k conversations, two blocks deep."""
        from mmspec.vlm.training.objective_wrappers import Glancing
        from mmspec.vlm.training.recipes import feature_recipe

        terms = "smooth_l1,cross_entropy:0.09,hard_cross_entropy:0.01"
        recipe = feature_recipe(terms, depths=4, depth_decay=1.0, noise=0.0)
        return {cls.kind: replace(recipe, objective=Glancing(recipe.objective))}

    def prescribed(self, recipe: Any) -> Any:
        """See `PretrainedDrafter.prescribed`; two blocks are trained, with glancing."""
        from mmspec.vlm.training.objective_wrappers import Glancing

        return replace(recipe, objective=Glancing(replace(recipe.objective, depths=2 * self.block)))


def _ahead(rows: Tensor, steps: int) -> Tensor:
    """Return rows [B, m, H] shifted left by `steps`, zeros behind the end."""
    return F.pad(rows, (0, 0, 0, steps))[:, steps:]


class FalconState(FeatureState):
    """The state of a request. A node passes on to its children the features of its block, the state of the LSTM and its
    last `block` outputs, side by side. Depth d reads offset (d - 1) % block of the features, and a level at the end of
    a block runs the layer. `memory`, float [B, S, 4 H], are the states of the LSTM behind the committed slots."""

    def __init__(self, drafter: Falcon, target: object):
        super().__init__(drafter, target)
        self.memory: Tensor | None = None

    def fill(self, slots: PromptSlots) -> None:
        tops = self.drafter.lstm.top(self.scan(slots.attend))
        self.remember(tops, self.rotary[self.next_position[:, None] + slots.position], slots.count)

    def scan(self, pairs: Tensor) -> Tensor:
        """Run the LSTM over new pairs [B, n, 2 H]; note and return the states behind them, float [B, n, 4 H]."""
        length = (
            torch.zeros(len(pairs), dtype=torch.long, device=pairs.device) if self.memory is None else self.cache.length
        )
        if self.memory is None:
            self.memory = pairs.new_zeros(len(pairs), 1, 2 * pairs.shape[-1])
        before = gather_nodes(self.memory, (length - 1).clamp(min=0)[:, None])[:, 0]
        states = self.drafter.lstm.scan(pairs, torch.where(length[:, None] > 0, before, 0.0))
        place = length[:, None] + torch.arange(pairs.shape[1], device=pairs.device)
        more = self.cache.width + pairs.shape[1] - self.memory.shape[1]
        self.memory = F.pad(self.memory, (0, 0, 0, max(more, 0)))
        self.memory.scatter_(1, place[..., None].expand_as(states), states)
        return states

    def catch_up(self, depth: int | None = None) -> None:
        """Read the accepted pairs and draft the first block, from the last slots of every row."""
        drafter, block = self.drafter, self.drafter.block
        hidden, value, self.counts = self.pending_features.take()
        pairs, _ = drafter.fuse(drafter.embeddings(value, self.target.parts), hidden)
        self._reach(pairs.dtype)
        step = torch.arange(pairs.shape[1], device=value.device)
        _, key, value = drafter.layer.heads(
            drafter.lstm.top(self.scan(pairs)), self.rotary[self.next_position[:, None] + step]
        )
        key, value = self.cache.write(0, key, value)
        self.passes += 1
        self.next_position = self.next_position + torch.tensor(self.counts, device=step.device)
        self.cache.advance(self.counts)
        length = self.cache.length[:, None]
        back = torch.arange(-block, 0, device=step.device)
        tops = drafter.lstm.top(gather_nodes(self.memory, (length + back).clamp(min=0)))
        query, _, _ = drafter.layer.heads(tops, self.rotary[(self.next_position[:, None] + back).clamp(min=0)])
        seen = torch.arange(key.shape[2], device=step.device) < length[..., None, None]
        features = drafter.features(tops, query, key, value, seen)
        state = gather_nodes(self.memory, (length - 1).clamp(min=0))[:, 0]
        self.root = torch.cat([features.flatten(1), state, torch.zeros_like(features).flatten(1)], -1)

    def feature(self, out: Tensor, depth: int) -> Tensor:
        """Return the features [B, n, H] of the children at `depth` (from 1)."""
        width = self.drafter.config.hidden_size
        start = (depth - 1) % self.drafter.block * width
        return out[..., start : start + width]

    def logits(self, out: Tensor, depth: int) -> Tensor:
        return super().logits(self.feature(out, depth), depth)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        drafter, width, block = self.drafter, self.drafter.config.hidden_size, self.drafter.block
        features, state, tops = hidden.split([block * width, 4 * width, block * width], -1)
        pair, _ = drafter.fuse(drafter.embeddings(token, self.target.parts), self.feature(hidden, depth))
        state = drafter.lstm.step(pair, state)
        tops = torch.cat([tops[..., width:], drafter.lstm.top(state)], -1)
        place = self.next_position[:, None] + depth - 1
        self._reach(pair.dtype)
        _, key, value = drafter.layer.heads(
            drafter.lstm.top(state), self.rotary[place].expand(-1, token.shape[1], -1, -1)
        )
        key, value = self.cache.write(0, key, value)
        if depth % block == 0:
            rows = tops.unflatten(-1, (block, width)).flatten(1, 2)  # [B, n * block, H]
            turned = self.rotary[place + torch.arange(1 - block, 1, device=token.device)].repeat(
                1, token.shape[1], 1, 1
            )
            query, _, _ = drafter.layer.heads(rows, turned)
            bias = self.bias(ancestor, back, rows.dtype)
            bias = None if bias is None else bias.repeat_interleave(block, 2)
            features = drafter.features(rows, query, key, value, bias).view_as(tops)
            self.passes += 1
        self.cache.advance(token.shape[1])
        return torch.cat([features, state, tops], -1)
