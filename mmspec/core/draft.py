"""What a drafter hands to the round: values on a tree, and the law they were really drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from mmspec.core.tree import Tree, chain
from mmspec.kernels.slots import take_nodes

Drawn = Literal["without_replacement", "with_replacement", "deterministic", "none"]


@dataclass(slots=True)
class Law:
    """The q record: the law the children of each node were drawn from, after every warp the drafter applied.

    drawn: how siblings were drawn from their parent's law. A chain drawn from q counts as "without_replacement"
        (one child). "deterministic": picked without randomness; "none": no law is known. Both carry no tensors.
    row: int64 [N], the row of `scores` / `mean` that holds the law of node i's children, -1 for a leaf.
    scores: float32 [B, M, V], log-weights whose softmax is q, bit for bit what the drafter sampled from.
    mean, scale: float32 [B, M, d] and [B, M, 1] of an isotropic Gaussian.
    reused: drafted values, or the noise behind them, live on below a rejection. Whether a node stands may then depend only
        on what was drawn down to it: a rule that looks further ahead would change the law of what lives on.
    """

    drawn: Drawn
    row: Tensor | None = None
    scores: Tensor | None = None
    mean: Tensor | None = None
    scale: Tensor | None = None
    reused: bool = False

    @property
    def kind(self) -> str:
        """One of "categorical", "gaussian", "onehot", "none": what rules list in `proven_for`."""
        if self.scores is not None:
            return "categorical"
        if self.mean is not None:
            return "gaussian"
        return "onehot" if self.drawn == "deterministic" else "none"


@dataclass(slots=True)
class Draft:
    """N values per row on a tree; node 0 holds the last committed value (its evidence decides depth 1).

    value: int64 [B, N] token ids, float [B, N, d] vectors, or int64 [B, N] handles of blocks.
    valid: bool [B, N] or None for all; an invalid node is never accepted and neither is anything below it.
    law: the q record of the drafted nodes.
    index: int64 [B, N], where in the output each node stands; None where its depth below the root tells.
    open: bool [B, N], nodes whose follower a mask verdict may fill in; None for all.
    """

    value: Tensor
    tree: Tree
    law: Law
    valid: Tensor | None = None
    index: Tensor | None = None
    open: Tensor | None = None

    @property
    def batch(self) -> int:
        """B, the rows."""
        return self.value.shape[0]


def root_only(pending: Tensor) -> Draft:
    """The draft that drafts nothing: one target pass yields one value. pending: [B] or [B, d]."""
    return Draft(pending[:, None], chain(0, pending.device), Law("none"))


def expand_tree(tensor: Tensor, batch: int) -> Tensor:
    """A tree tensor [R, ...] as [B, ...] without copying."""
    return tensor.expand(batch, *tensor.shape[1:])


def gather_nodes(tensor: Tensor, node: Tensor) -> Tensor:
    """tensor [B, N, ...] at node int64 [B, K] -> [B, K, ...]."""
    return take_nodes(tensor, node)
