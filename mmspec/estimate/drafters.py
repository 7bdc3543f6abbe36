"""The work of drafters, as data: by the names that `mmspec methods` lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmspec.estimate.model_cost import ModelCost
from mmspec.estimate.work import BYTES, NOTHING, Work, product
from mmspec.methods import MethodInfo, methods
from mmspec.methods.settings import nearest

Pattern = Literal["nothing", "levels", "block", "heads", "model", "part"]


@dataclass(frozen=True, slots=True)
class DrafterCost:
    """The cost of a drafter, named as its method. Its pattern is "nothing": no model; "levels": a pass per level;
    "block": a pass per draft; "heads": a head per level on the target's last state; "model": a pass of another model
    per level; or "part": a pass of a part of the target per level."""

    name: str
    pattern: Pattern
    layers: int = 1  # each like those of the target; for "part" its per cent of the target
    joined: int = 2  # hidden states of the target's width that the drafter's input combines, 0 for none
    tree: bool = True  # it drafts trees
    head_share: float = 1.0  # the share of the target's vocabulary in the drafter's head

    def work(
        self,
        target: ModelCost,
        length: int,
        width: float,
        context: float,
        dtype: str,
        batch: int = 1,
        small: ModelCost | None = None,
    ) -> Work:
        """Return the work of a draft of `length` levels, each with `width` expanded nodes, over `context` tokens in the
        cache. `dtype` is that of cache and activations; `small` drafts for the pattern "model"."""
        if self.pattern == "nothing" or length == 0:
            return NOTHING
        if self.pattern == "model":
            if small is None:
                raise ValueError(
                    f"--drafter: expected a model for {self.name}, such as {self.name}@smollm2, got none, name one"
                )
            return length * small.pass_work(1, context, dtype, batch=batch)
        if self.pattern == "part":
            return length * self.layers / 100 * target.pass_work(1, context, dtype, batch=batch)
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
        if self.pattern == "model" and small is not None:
            return small.prefill_work(tokens, dtype, batch=batch)
        if self.pattern in ("nothing", "heads", "part"):
            return NOTHING
        rows = batch * target.branches * tokens
        joined = product(rows, self.joined * target.head[0], target.head[0]) if self.joined else NOTHING
        return self.layers * _layer_work(target, rows, 0, dtype, batch) + joined


def _layer_work(target: ModelCost, rows: float, context: float, dtype: str, batch: int) -> Work:
    """Return the work of a layer like the target's last, with its share of the cache and of the operators."""
    share = 1 / target.layers
    products = {(rows, inner, columns): count for (inner, columns), count in target.layer.items()}
    moved = share * BYTES[dtype] * (batch * target.branches * context * target.kept + rows * target.touched)
    return Work(products, share * rows * target.attention * context, moved, share * target.calls, share * target.views)


def drafter_costs() -> dict[str, DrafterCost]:
    """Return the drafters for text, and the decodings of codes that draft without a model, by method name."""
    windows = (
        info for info in methods("image", "decoding", models="codes") if not info.needs and "relaxed" not in info.facts
    )
    known = (*(info for info in methods("vlm", "drafter") if info.name != "auto"), *windows)
    return {info.name: _cost(info) for info in reversed(known)}


def _cost(info: MethodInfo) -> DrafterCost:
    """Return the cost of a method from the steps that its class declares; without them it runs no model."""
    steps = info.facts.get("steps", ("nothing", 0, 0))
    tree = steps[0] in ("levels", "block", "heads") or any("tree" in form for form in info.facts.get("drafts", ()))
    return DrafterCost(info.name, *steps, tree=tree)


def drafter_cost(name: str) -> DrafterCost:
    known = drafter_costs()
    if name not in known:
        raise ValueError(f"--drafter: expected one of {', '.join(known)}, got {name!r}{nearest(name, tuple(known))}")
    return known[name]
