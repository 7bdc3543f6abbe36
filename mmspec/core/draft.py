"""The data of one round: the draft and its recorded law, the target's evidence about it, and the verdict of a rule."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.tree import Tree, chain
from mmspec.kernels.draft_tree import take_nodes

Drawn = Literal["without_replacement", "with_replacement", "deterministic", "none"]


@dataclass(slots=True)
class Copies:
    """Which nodes of a draft were copied from elsewhere instead of drawn: at most one path in every row.

    node: bool [B, N]. The copied nodes of a row stand in the order of their path. The first is the last child of a drawn node,
        every other one the only child of the one before it. Their law is one-hot.
    drawn: the tree of the drawn nodes, which is the same for all rows and comes first in the draft. A row may have copied
        nodes in places of this tree where it drew nothing.
    """

    node: Tensor
    drawn: Tree


@dataclass(slots=True)
class Law:
    """The q record: the law the children of each node were drawn from, after every warp the drafter applied.

    drawn: how siblings were drawn from their parent's law. A chain drawn from q counts as "without_replacement"
        (one child). "deterministic": picked without randomness; "none": no law is known. Both carry no tensors.
    row: int64 [N], the row of `scores` / `mean` that holds the law of node i's children, -1 for a leaf.
    scores: float32 [B, M, V], log-weights whose softmax is q, bit for bit what the drafter sampled from.
    ids: int64 [k], rising, the values that the columns of scores [B, M, k] stand for where a drafter knows only these; None
        for all.
    mean, scale: float32 [B, M, d] and [B, M, 1] of an isotropic Gaussian.
    reused: drafted values, or the noise behind them, live on below a rejection. Whether a node stands may then depend only
        on what was drawn down to it: a rule that looks further ahead would change the law of what lives on.
    copies: the nodes whose law is one-hot whatever `scores` says; None where every node was drawn from `scores`, which may be
        None where all were copied.
    """

    drawn: Drawn
    row: Tensor | None = None
    scores: Tensor | None = None
    mean: Tensor | None = None
    scale: Tensor | None = None
    reused: bool = False
    copies: Copies | None = None
    ids: Tensor | None = None

    @property
    def kind(self) -> str:
        """One of "categorical", "gaussian", "onehot", "none": what rules list in `proven_for`."""
        if self.scores is not None or self.copies is not None:
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


@dataclass(slots=True)
class Preview:
    """The draft that a drafter would make of a row, where committed values alone decide it and it costs nothing.

    kind: of the draft; drafts of one kind are accepted alike.   values: the drafted values in order.
    """

    kind: Hashable
    values: list[int]


def expand_tree(tensor: Tensor, batch: int) -> Tensor:
    """A tree tensor [R, ...] as [B, ...] without copying."""
    return tensor.expand(batch, *tensor.shape[1:])


def gather_nodes(tensor: Tensor, node: Tensor) -> Tensor:
    """tensor [B, N, ...] at node int64 [B, K] -> [B, K, ...]."""
    return take_nodes(tensor, node)


@dataclass(slots=True)
class Evidence:
    """The target's view of every node of a draft; a domain fills what its rules read and leaves the rest None.

    scores: float32 [B, N, V], the target's log-weights for the value that follows node i, after all logits
        processors; softmax of it is p. Never NaN: rows of `bad` nodes are neutralised by the target.
    greedy: the request takes the argmax of `scores` (temperature 0).
    mean, scale: float32 [B, N, d] and [B, N, 1], the target's Gaussian for the value that follows node i.
    reward: float32 [B, N], the judged quality of node i itself.
    hidden: float [B, N, H], states drafters ask for.
    bad: bool [B, N], nodes whose raw outputs were NaN or Inf; None when all are finite.
    """

    scores: Tensor | None = None
    greedy: bool = False
    mean: Tensor | None = None
    scale: Tensor | None = None
    reward: Tensor | None = None
    hidden: Tensor | None = None
    bad: Tensor | None = None


def neutralise_bad_scores(scores: Tensor, asks: bool = True) -> tuple[Tensor, Tensor | None]:
    """Scores [..., V] with zeros where nothing could be drawn from them (NaN, +Inf, or -Inf throughout), and bool [...],
    where that was; None where it was nowhere, as far as that is known without a sync.

    asks: whether the host may look, which is free on the CPU; inside a captured round it may not.
    """
    bad = ~scores.amax(-1).isfinite()
    if asks and bad.is_cpu and not bad.any():
        return scores, None
    return torch.where(bad[..., None], 0.0, scores), bad


@dataclass(slots=True)
class Verdict:
    """The outcome of one round.

    kind: "path": the values on root..`node` are kept and `correction` follows them.
        "mask": the nodes in `keep` are kept where they stand; `correction` holds what the domain puts in the place of
        the others, or behind a node.
        "regenerate": rows in `redo` need the target itself to make the value; `correction` holds it afterwards.
    node: int64 [B], deepest accepted node.   path: int64 [B, D + 1], nodes root..node, padded with node.
    depth: int64 [B], accepted drafted values (the root not counted).
    keep: bool [B, N].   redo: bool [B].
    correction: the value after the path, [B] or [B, d] ("path", "regenerate"), or [B, N, ...] ("mask").
    """

    kind: Literal["path", "mask", "regenerate"]
    node: Tensor
    path: Tensor
    depth: Tensor
    correction: Tensor | None = None
    keep: Tensor | None = None
    redo: Tensor | None = None


def run_of(draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor]:
    """The values a path verdict emits: ([B, D + 1, ...] drafted values then the correction, int64 [B] how many count).

    Entries past the count repeat the correction.
    """
    if verdict.path.shape[1] == 1:
        return verdict.correction[:, None].to(draft.value.dtype), verdict.depth + 1
    values = gather_nodes(draft.value, verdict.path)
    tail = verdict.correction[:, None]
    run = values.roll(-1, 1)
    past = torch.arange(run.shape[1], device=run.device) >= verdict.depth[:, None]
    past = past.reshape(*past.shape, *([1] * (run.dim() - 2)))
    return run.where(~past, tail.to(run.dtype).expand_as(run)), verdict.depth + 1
