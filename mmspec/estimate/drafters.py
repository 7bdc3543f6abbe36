"""The computations of drafters as data, by the names in `mmspec methods`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmspec.estimate.model_cost import ModelCost
from mmspec.estimate.work import BYTES, NOTHING, Work, product
from mmspec.methods import MethodInfo, methods
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
    """Return the work of a layer like the target's last layer, with its share of the cache and of the operators."""
    share = 1 / target.layers
    products = {(rows, inner, columns): count for (inner, columns), count in target.layer.items()}
    moved = share * BYTES[dtype] * (batch * target.branches * context * target.cached + rows * target.touched)
    return Work(products, share * rows * target.attention * context, moved, share * target.calls, share * target.views)


def drafter_costs() -> dict[str, DrafterCost]:
    """The drafters for text, and the decodings of codes that draft without a model, by the names of `mmspec methods`."""
    windows = (
        one for one in methods("image", "decoding", models="codes") if not one.needs and "relaxed" not in one.facts
    )
    infos = (*(one for one in methods("vlm", "drafter") if one.name != "auto"), *windows)
    return {one.name: _cost(one) for one in reversed(infos)}


def _cost(info: MethodInfo) -> DrafterCost:
    """Return the cost of a method from the steps that its class declares; without steps it runs no model."""
    steps = info.facts.get("steps", ("nothing", 0, 0))
    tree = steps[0] in ("levels", "block", "heads") or any("tree" in form for form in info.facts.get("drafts", ()))
    return DrafterCost(info.name, *steps, tree=tree)


def drafter_cost(name: str) -> DrafterCost:
    """Return the cost of a drafter.

    Args:
        name: A name of `drafter_costs`.

    Raises:
        ValueError: The name is unknown.
    """
    known = drafter_costs()
    if name not in known:
        raise ValueError(f"--drafter: expected one of {', '.join(known)}, got {name!r}{nearest(name, tuple(known))}")
    return known[name]
