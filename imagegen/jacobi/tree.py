"""Siblings beside the first values of a window, so that a drafted value is left after a rejection near the root."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from mmspec.core.round.sampling import law_of, sample_categorical
from mmspec.core.round.tree import Tree, static_tree
from mmspec.io.validation import Range, Size, check_fields


@dataclass(frozen=True, slots=True)
class Proactive:
    """A tree with width - 1 leaves beside each of the first `depth` values of the window, drawn as the value.

    "SJD-PAC: Accelerating Speculative Jacobi Decoding via Proactive Drafting and Adaptive Continuation" (no public
    code). The paper grows a tree of this depth and width where the last round rejected, and a chain below. Here only
    the window's own values have children, because only their distributions are known. The paper's adaptive continuation
    is maximal coupling.

    Args:
        depth: The levels with siblings.
        width: The number of siblings per level, the window's value included.
        drawn: "without_replacement" for recursive rejection and traversal verification, "with_replacement" for K-SEQ.

    Raises:
        ValueError: The depth is below 1, the width is below 2, or `drawn` is unknown.
    """

    depth: Size = 3
    width: Annotated[int, Range(2)] = 4
    drawn: Literal["without_replacement", "with_replacement"] = "without_replacement"

    __post_init__ = check_fields

    @classmethod
    def from_text(cls, text: str) -> Proactive:
        """Parse "DEPTHxWIDTH", such as "3x4"; a "+" behind it draws with replacement."""
        depth, sign, width = text.removesuffix("+").partition("x")
        if not (sign and depth.isdecimal() and width.isdecimal()):
            raise ValueError(f"tree: expected DEPTHxWIDTH such as 3x4, or 3x4+ for K-SEQ, got {text!r}; use this form")
        return cls(int(depth), int(width), "with_replacement" if text.endswith("+") else "without_replacement")

    def __str__(self) -> str:
        return f"{self.depth}x{self.width}{'+' if self.drawn == 'with_replacement' else ''}"

    def siblings(self, scores: Tensor, value: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
        """Draw siblings int64 [B, levels, width - 1] of values int64 [B, levels] from scores float [B, levels, V], and
        whether each could be drawn. `uniform` is float64; None picks the next likeliest values."""
        weight, last, rows, there = law_of(scores), value, [], []
        for rank in range(self.width - 1):
            if self.drawn == "without_replacement" or uniform is None:
                weight = weight.scatter(-1, last[..., None], 0.0)
            last = weight.argmax(-1) if uniform is None else sample_categorical(weight, uniform[..., rank])
            there.append(weight.amax(-1) > 0)
            rows.append(last)
        return torch.stack(rows, -1), torch.stack(there, -1)


@dataclass(frozen=True, slots=True, eq=False)
class Caterpillar:
    """A chain of drafted values with `width` - 1 leaves beside each of the first `levels` values, level by level."""

    tree: Tree
    spine: Tensor  # int64 [length + 1], the chain's nodes, root first
    row: Tensor  # int64 [N], the row of the chain's distributions that a node's children come from, -1 for leaves


@lru_cache(maxsize=512)
def caterpillar(length: int, levels: int, width: int, device: str) -> Caterpillar:
    """Return the shape of a window of `length` values. The nodes down to a depth are the same in every longer window."""
    parents, spine, row = [0], [0], [0 if length else -1]
    for depth in range(1, length + 1):
        parents += [spine[-1]] * (width if depth <= levels else 1)
        spine.append(len(row))
        row.append(depth if depth < length else -1)
        row += [-1] * (len(parents) - len(row))
    return Caterpillar(
        static_tree(parents, device), torch.tensor(spine, device=device), torch.tensor(row, device=device)
    )


def with_siblings(first: Tensor, siblings: Tensor) -> Tensor:
    """Merge the window's values [B, K] and their siblings [B, levels, width - 1] in the order of `caterpillar`'s nodes."""
    levels = siblings.shape[1]
    return torch.cat((torch.cat((first[:, :levels, None], siblings), -1).flatten(1), first[:, levels:]), 1)
