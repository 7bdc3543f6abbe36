"""S2D: a drafter of several layers, each prefix of which is a drafter, so that easy tokens cost few layers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.drafting.growth import DraftBudget
from mmspec.core.drafting.layer import DraftLayer
from mmspec.core.length.controls import LengthControl
from mmspec.core.round.draft import Draft
from mmspec.core.round.keys import Keys
from mmspec.io.validation import number
from mmspec.methods import MethodParts, method
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config
from mmspec.vlm.drafters.eagle3.state import Eagle3State
from mmspec.vlm.partial_passes import slots_ahead


@dataclass(frozen=True, slots=True)
class S2DConfig(Eagle3Config):
    num_hidden_layers: int = 3
    exits: tuple[int, ...] = ()  # the trained prefixes as rising numbers of layers up to all; empty for each
    thresholds: tuple[float, ...] = ()  # per exit but the last, see `with_thresholds`; empty for 0.6

    def __post_init__(self) -> None:
        Eagle3Config.__post_init__(self)
        count = self.num_hidden_layers
        exits = tuple(self.exits) or tuple(range(1, count + 1))
        object.__setattr__(self, "exits", exits)
        if list(exits) != sorted(set(exits)) or exits[0] < 1 or exits[-1] != count:
            raise ValueError(f"exits: expected ascending numbers of layers, the last of which is {count}, got {exits}")
        thresholds = tuple(number("thresholds", value, 0, 1) for value in self.thresholds) or (0.6,) * (len(exits) - 1)
        object.__setattr__(self, "thresholds", thresholds)
        if len(thresholds) != len(exits) - 1:
            raise ValueError(f"thresholds: expected {len(exits) - 1} numbers, one an early exit, got {thresholds}")
        if any(self.windows):
            raise ValueError(f"windows: expected layers that see all earlier slots, got windows {self.windows}")


def s2d_settings(
    chain: int = 0,
    nodes: int = 0,
    depth: int = 7,
    width: int = 4,
    length: LengthControl | str | None = None,
    threshold: float | None = None,
) -> None:
    """Take the settings of `S2D`.

    Args:
        chain: The tokens of a chain.
        nodes: The nodes of a dynamic tree.
        depth: The levels of that tree.
        width: The nodes expanded in a level of that tree.
        length: The controller of a chain's length.
        threshold: The probability that an exit's likeliest token must exceed; the drafter's own when left out.
    """


@method(
    "s2d",
    domain="vlm",
    kind="drafter",
    title="S2D",
    exact=True,
    needs=("weights",),
    takes=s2d_settings,
    order=8,
    about="layers of EAGLE-3 with an exit behind each; sure tokens leave early",
    paper="S2D: Sorted Speculative Decoding For More Efficient Deployment of Nested Large Language Models",
)
class S2D(Eagle3):
    """A nested drafter: a node's distribution is that of the shallowest exit that is sure. Exact in every shape.

    Paper: "S2D: Sorted Speculative Decoding For More Efficient Deployment of Nested Large Language Models" (arXiv
    2407.01955). All exits share EAGLE-3's final norm and head. The exit depends on distributions that nothing has been
    drawn from yet, and the recorded distribution is that of the exit. Confidence is read in front of the temperature.
    """

    kind: ClassVar[str] = "s2d"
    config_class = S2DConfig
    name = "s2d"
    published_as, writers = (), {}
    from_published = vars(PretrainedDrafter)["from_published"]  # no checkpoint is published
    config: S2DConfig

    def __init__(self, config: S2DConfig):
        super().__init__(config)
        self.prefix = config.num_hidden_layers

    @classmethod
    def make(cls, settings: dict[str, Any], parts: MethodParts) -> Self:
        settings = dict(settings)
        threshold = settings.pop("threshold", None)
        drafter = super().make(settings, parts)
        return drafter if threshold is None else drafter.with_thresholds(threshold)

    def with_thresholds(self, *thresholds: float) -> Self:
        """Return a drafter with the same weights and other thresholds: one for all exits, or one per exit but the last."""
        each = thresholds * (len(self.config.exits) - 1) if len(thresholds) == 1 else thresholds
        other = copy.copy(self)
        other.config = replace(self.config, thresholds=each)
        return other

    def with_exit(self, layers: int) -> Self:
        """Return the drafter of the first `layers` layers, with the same weights."""
        if layers not in self.config.exits:
            raise ValueError(f"exit: expected one of {self.config.exits}, got {layers}; use a trained exit")
        other = copy.copy(self)
        other.prefix = layers
        return other

    @property
    def layers(self) -> tuple[DraftLayer, ...]:
        return (self.layer, *self.rest)[: self.prefix]

    def new_state(self, target: object) -> Eagle3State:
        return S2DState(self, target) if self.prefix == self.config.num_hidden_layers else Eagle3State(self, target)

    def prescribed(self, recipe: Any) -> Any:
        from mmspec.vlm.training.objective_wrappers import SortedExits

        return replace(recipe, objective=SortedExits(recipe.objective))

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return EAGLE-3's recipe with the sum of its objective over the exits."""
        from mmspec.vlm.training.objective_wrappers import SortedExits

        (recipe,) = super().recipes().values()
        return {cls.kind: replace(recipe, objective=SortedExits(recipe.objective))}


@dataclass(frozen=True, slots=True)
class Level:
    attend: Tensor  # [B, n, A], the input of the next layer
    carry: Tensor  # [B, n, H], its residual
    rotary: Tensor  # [B, n, 2, dim], at their positions
    ancestor: Tensor  # bool [R, n, m], the drafted nodes that each node sees

    def behind(self, others: list[Level]) -> Level:
        if not others:
            return self
        levels, width, rows = [*others, self], self.ancestor.shape[-1], max(len(x.ancestor) for x in (*others, self))
        seen = [F.pad(x.ancestor, (0, width - x.ancestor.shape[-1])).expand(rows, -1, -1) for x in levels]
        names = ("attend", "carry", "rotary")
        return Level(*(torch.cat([getattr(x, name) for x in levels], 1) for name in names), torch.cat(seen, 1))


class S2DState(Eagle3State):
    """Accepted pairs are read by all layers, drafted nodes by as few as they need. `waiting` holds per layer the levels
    that it has not read. It reads them with the next level that reaches it, so every node sees the keys and values of
    whole passes. `exits` are per level below the first the exits of its nodes as numbers of layers, int64 [B, n]."""

    def __init__(self, drafter: S2D, target: object):
        super().__init__(drafter, target)
        self.waiting: list[list[Level]] = []
        self.exits: list[Tensor] = []
        self.scored: tuple[Tensor | None, Tensor | None] = None, None

    def draft(self, target: object, keys: Keys, budget: DraftBudget) -> Draft:
        self.waiting, self.exits = [[] for _ in self.drafter.layers], []
        return super().draft(target, keys, budget)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        known, scores = self.scored
        return scores if out is known else super().logits(out, depth)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Return the features of a level of drafted nodes [B, n, H], each at its own exit."""
        drafter, count, parts = self.drafter, token.shape[1], self.target.parts
        attend, carry = drafter.fuse(drafter.embeddings(token, parts), hidden)
        self._reach(attend.dtype)
        position = (self.next_position[:, None] + depth - 1).expand(-1, count)
        if ancestor is None:
            ancestor = torch.ones(1, 1, back + 1, dtype=torch.bool, device=token.device)
        level = Level(attend, carry, self.rotary[position], ancestor)
        stopped = ~torch.tensor(self.target.live, device=token.device)[:, None]
        left, out, scores = stopped.expand(-1, count), None, None
        used = torch.full_like(token, drafter.prefix)
        self.passes += 1
        for index in range(drafter.prefix):
            level = self.through(index, level, count, back)
            if index + 1 not in drafter.config.exits:
                continue
            own = drafter.finished(level.carry[:, -count:])
            mine = super().logits(own, depth + 1)
            out = own if out is None else torch.where(left[..., None], out, own)
            scores = mine if scores is None else torch.where(left[..., None], scores, mine)
            if index + 1 == drafter.prefix:
                break
            sure = mine.softmax(-1).amax(-1) > drafter.config.thresholds[drafter.config.exits.index(index + 1)]
            used = torch.where(sure & ~left, index + 1, used)
            left = left | sure
            if bool(left.all()):
                self.waiting[index + 1].append(level)
                break
        self.scored = out, scores
        self.exits.append(used)
        self.cache.advance(count)
        return out

    def through(self, index: int, level: Level, count: int, back: int) -> Level:
        """Run layer `index` over the waiting levels and this level, whose `count` own nodes come last; `back` are
        cached."""
        level, self.waiting[index] = level.behind(self.waiting[index]), []
        layer, earlier = self.drafter.layers[index], level.attend.shape[1] - count
        query, key, value = layer.heads(level.attend, level.rotary)
        keys, values = slots_ahead(self.cache, -earlier).write(index, key, value)
        bias = self.cache.bias(level.ancestor, query.dtype, back)
        carry = layer.finish(level.carry, layer.attention(query, keys, values, bias))
        return replace(level, attend=carry, carry=carry)
