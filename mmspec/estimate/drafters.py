"""What drafters compute, as data: by the names that `mmspec methods` lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmspec.estimate.model_cost import ModelCost
from mmspec.estimate.work import BYTES, NOTHING, Work, product
from mmspec.methods.settings import nearest

Pattern = Literal["nothing", "levels", "block", "heads", "model"]


@dataclass(frozen=True, slots=True)
class DrafterCost:
    """A drafter.

    Attributes:
        name: Of the method.
        pattern: "nothing": no model; "levels": a pass a level; "block": a pass a draft; "heads": a head a level on the
            target's last state; "model": a pass of another model a level.
        layers: Like the target's, of the drafter.
        joined: Hidden states of the target's width that come together at its entry, 0 for none.
        tree: Whether it drafts trees.
        head_share: Rows of the head, of the target's vocabulary.
    """

    name: str
    pattern: Pattern
    layers: int = 1
    joined: int = 2
    tree: bool = True
    head_share: float = 1.0

    def work(
        self, target: ModelCost, length: int, width: float, context: float, dtype: str, batch: int = 1,
        small: ModelCost | None = None,
    ) -> Work:  # fmt: skip
        """The work of a draft.

        Args:
            target: The model that verifies.
            length: Levels.
            width: Nodes of a level that are gone on from.
            context: Tokens in the cache.
            dtype: Of the cache and of activations.
            batch: Requests.
            small: The model that drafts, of the pattern "model".

        Raises:
            ValueError: The drafter needs a model and none is given.
        """
        if self.pattern == "nothing" or length == 0:
            return NOTHING
        if self.pattern == "model":
            if small is None:
                raise ValueError(f"--drafter: expected a model behind {self.name}, such as {self.name}@smollm2, got none, "
                                 "name one")  # fmt: skip
            return length * small.pass_work(1, context, dtype, batch=batch)
        rows = batch * target.branches * (length if self.pattern == "block" else width)
        head = product(rows, target.head[0], max(round(self.head_share * target.head[1]), 1))
        if self.pattern == "heads":
            own = product(rows, target.head[0], target.head[0])
            return length * (own + head)
        passes = 1 if self.pattern == "block" else length
        layer = _layer_work(target, rows, context, dtype, batch)
        joined = product(rows, self.joined * target.head[0], target.head[0]) if self.joined else NOTHING
        return passes * (self.layers * layer + joined + head)

    def prefill_work(
        self, target: ModelCost, tokens: float, dtype: str, batch: int = 1, small: ModelCost | None = None
    ) -> Work:
        """The work of reading a prompt."""
        if self.pattern == "model" and small is not None:
            return small.prefill_work(tokens, dtype, batch=batch)
        if self.pattern in ("nothing", "heads"):
            return NOTHING
        rows = batch * target.branches * tokens
        joined = product(rows, self.joined * target.head[0], target.head[0]) if self.joined else NOTHING
        return self.layers * _layer_work(target, rows, 0, dtype, batch) + joined


def _layer_work(target: ModelCost, rows: float, context: float, dtype: str, batch: int) -> Work:
    """A layer like the target's last one, with its share of the cache and of the operators."""
    share = 1 / target.layers
    products = {(rows, inner, columns): count for (inner, columns), count in target.layer.items()}
    moved = share * BYTES[dtype] * (batch * target.branches * context * target.kept + rows * target.touched)
    return Work(products, share * rows * target.attention * context, moved, share * target.calls, share * target.views)


_EAGLE = {"pattern": "levels", "layers": 1, "joined": 2}
DRAFTERS: dict[str, DrafterCost] = {
    one.name: one
    for one in (
        *(DrafterCost(name, **_EAGLE) for name in ("eagle", "msd", "vispec", "specvlm", "mtp", "gemma4_assistant")),
        DrafterCost("eagle3", "levels", 1, 3),
        DrafterCost("peagle", "block", 1, 3),
        DrafterCost("flash", "block", 1, 2),
        DrafterCost("dflash", "block", 5, 5, tree=False),
        DrafterCost("dflash2", "block", 5, 5, tree=False),
        DrafterCost("dspark", "block", 5, 5, tree=False),
        DrafterCost("xpress", "block", 5, 5, tree=False),
        DrafterCost("medusa", "heads", 0, 0),
        DrafterCost("hydra", "heads", 0, 0),
        DrafterCost("lookup", "nothing", 0, 0, tree=False),
        DrafterCost("recycling", "nothing", 0, 0),
        DrafterCost("both", "levels", 1, 2),
        DrafterCost("small", "model", 0, 0, tree=False),
        DrafterCost("none", "nothing", 0, 0, tree=False),
        # decodings of images that draft without a model: a window is judged again and again
        *(DrafterCost(name, "nothing", 0, 0, tree=False) for name in ("sjd", "scd", "pac", "rows")),
    )
}


def drafter_cost(name: str) -> DrafterCost:
    """The drafter called `name`.   Raises ValueError for an unknown name."""
    if name not in DRAFTERS:
        raise ValueError(
            f"--drafter: expected one of {', '.join(DRAFTERS)}, got {name!r}{nearest(name, tuple(DRAFTERS))}"
        )
    return DRAFTERS[name]
