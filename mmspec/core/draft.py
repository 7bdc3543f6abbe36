"""The data of one round: the draft and its recorded distribution, the target's evidence, and the verdict of a rule."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.tree import Tree, chain, static_tree
from mmspec.kernels.draft_tree import take_nodes

Drawn = Literal["without_replacement", "with_replacement", "deterministic", "none"]


@dataclass(slots=True)
class Copies:
    """The nodes of a draft that were copied instead of drawn: paths, or tries of paths, behind the drawn nodes.

    Attributes:
        node: bool [B, N]. A copied node follows all drawn siblings, and its children are copied. Its distribution is
            one-hot, and its token differs from those of its siblings.
        drawn: The tree of the drawn nodes, the same for all rows and first in the draft. A row may have copied nodes at
            positions of this tree where it drew nothing.
        branching: Whether a row may have more than one path. Without it the copied nodes of a row are in the order of
            its path.
    """

    node: Tensor
    drawn: Tree
    branching: bool = False


@dataclass(slots=True)
class SecondTree:
    """A tree of another drawn source under the same root, tested behind the first tree.

    A token that both sources drew stays twice: to drop a drawn value would change the distribution.

    Attributes:
        first: The tree of the first source, the same for all rows and first in the draft.
        second: The tree of the second source with the shared root, the same for all rows. Its drawn nodes follow.
        first_row: int64 [1], the row of `Law.scores` for the first source's children of the root. `Law.row` holds the
            second source's.
    """

    first: Tree
    second: Tree
    first_row: Tensor


@dataclass(slots=True)
class Law:
    """The q record: the distribution from which a node's children were drawn, after all logits processors.

    Attributes:
        drawn: How siblings were drawn from their parent's distribution. A chain drawn from q counts as
            "without_replacement" (a single child). "deterministic" means picked without randomness, "none" means that
            no distribution is known; both carry no tensors.
        row: int64 [N], the row of `scores` or `mean` that holds the distribution of node i's children; -1 for a leaf.
        scores: float32 [B, M, V], log-weights whose softmax is q: exactly the tensor that the drafter sampled from.
            None where all nodes were copied.
        mean: float32 [B, M, d], of an isotropic Gaussian.
        scale: float32 [B, M, 1], its standard deviation.
        reused: Drafted values, or their noise, are used again after a rejection. The acceptance of a node may then
            depend only on the draws down to it; a rule that looks further ahead would change the distribution of reused
            values.
        copies: The nodes whose distribution is one-hot whatever `scores` says; None where every node was drawn.
        ids: The values behind the columns of scores [B, M, k]; None for the whole vocabulary. int64 [k], ascending, the
            same for all distributions; or int64 [B, M, k], of each distribution its own, -1 with score -inf for none.
        second: The second drawn source; None where all nodes were drawn by one source.
    """

    drawn: Drawn
    row: Tensor | None = None
    scores: Tensor | None = None
    mean: Tensor | None = None
    scale: Tensor | None = None
    reused: bool = False
    copies: Copies | None = None
    ids: Tensor | None = None
    second: SecondTree | None = None

    @property
    def kind(self) -> str:
        """The kind that rules list in `proven_for`: "categorical", "gaussian", "onehot" or "none"."""
        if self.scores is not None or self.copies is not None:
            return "categorical"
        if self.mean is not None:
            return "gaussian"
        return "onehot" if self.drawn == "deterministic" else "none"


@dataclass(frozen=True, slots=True)
class EntryStates:
    """The states with which drafted nodes enter a layer of the target, from a drafter that has run the layers below it.

    The keys and values of these layers lie in the target's own cache, in the slots that the nodes have in its next pass.

    Attributes:
        layer: The layer that the states enter, the first that the target's pass still runs.
        hidden: float [B, N, H], in node order.
        value: The very tensor of the draft's values; the states do not count for a draft with another tensor.
        below: float [B, N, H] each, the states that have entered earlier layers, as far as a drafter reads them.
    """

    layer: int
    hidden: Tensor
    value: Tensor
    below: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Probes:
    """Inputs that a target pass reads behind the nodes of a draft: rules never see them, and no commit keeps them.

    Attributes:
        tree: The tree of the draft's N nodes, followed by P probes. Below a probe are only probes.
        embeds: float [B or 1, P, H], the input embeddings of the probes.
    """

    tree: Tree
    embeds: Tensor


@dataclass(slots=True)
class Draft:
    """N values per row on a tree; node 0 holds the last committed value, whose evidence decides depth 1.

    Attributes:
        value: int64 [B, N] token ids, float [B, N, d] vectors, or int64 [B, N] handles of blocks.
        tree: The topology.
        law: The q record of the drafted nodes.
        valid: bool [B, N], None for all; an invalid node and everything below it is rejected.
        index: int64 [B, N], the output position of each node; None where its depth below the root determines it.
        open: bool [B, N], nodes after which a mask verdict may fill in a value; None for all.
        entry: The states of the nodes in the middle of the target; None where its pass begins with their values.
        probes: The probes behind the nodes, for targets of text; None without probes.
    """

    value: Tensor
    tree: Tree
    law: Law
    valid: Tensor | None = None
    index: Tensor | None = None
    open: Tensor | None = None
    entry: EntryStates | None = None
    probes: Probes | None = None

    @property
    def batch(self) -> int:
        """The number of rows B."""
        return self.value.shape[0]

    @property
    def pass_tree(self) -> Tree:
        """The tree of the target pass: the nodes, then the probes."""
        return self.tree if self.probes is None else self.probes.tree


def root_only(pending: Tensor) -> Draft:
    """Return the draft without drafted values, whose target pass yields one value. `pending` is [B] or [B, d]."""
    return Draft(pending[:, None], chain(0, pending.device), Law("none"))


@dataclass(slots=True)
class Preview:
    """The draft that a drafter would make of a row, for drafters that compute it from committed values at no cost.

    Attributes:
        kind: The kind of the draft; drafts of one kind share an acceptance rate.
        values: The drafted values in order.
    """

    kind: Hashable
    values: list[int]


def expand_tree(tensor: Tensor, batch: int) -> Tensor:
    """Expand a tree tensor [R, ...] to [B, ...] without copying."""
    return tensor.expand(batch, *tensor.shape[1:])


def gather_nodes(tensor: Tensor, node: Tensor) -> Tensor:
    """Return `tensor` [B, N, ...] at `node` int64 [B, K], [B, K, ...]."""
    return take_nodes(tensor, node)


@dataclass(slots=True)
class Evidence:
    """The target's outputs for every node of a draft. Fields that the domain's rules do not read stay None.

    Attributes:
        scores: float32 [B, N, V], log-weights of the value that follows node i, after all logits processors; their
            softmax is p. Never NaN: the target replaces the scores of `bad` nodes.
        greedy: The request takes the argmax of `scores` (temperature 0).
        mean: float32 [B, N, d], the target's Gaussian for the value that follows node i.
        scale: float32 [B, N, 1], its standard deviation.
        reward: float32 [B, N], the quality score of node i itself.
        hidden: float [B, N, H], hidden states that drafters read.
        bad: bool [B, N], nodes whose raw outputs were NaN or Inf; None when all are finite.
        probed: float [B, P, H], the last hidden states of the draft's probes; None without probes.
    """

    scores: Tensor | None = None
    greedy: bool = False
    mean: Tensor | None = None
    scale: Tensor | None = None
    reward: Tensor | None = None
    hidden: Tensor | None = None
    bad: Tensor | None = None
    probed: Tensor | None = None


def neutralise_bad_scores(scores: Tensor, asks: bool = True) -> tuple[Tensor, Tensor | None]:
    """Replace scores that no value can be drawn from (NaN, +Inf, or -Inf throughout) by zeros.

    Args:
        scores: float32 [..., V].
        asks: Whether the host may read the result, which is free on the CPU and forbidden in a captured round.

    Returns:
        The scores, and bool [...] for the replaced rows, None where the host knows that there are none.
    """
    bad = ~scores.amax(-1).isfinite()
    if asks and bad.is_cpu and not bad.any():
        return scores, None
    return torch.where(bad[..., None], 0.0, scores), bad


def learnable_nodes(draft: Draft, evidence: Evidence, live: Sequence[bool]) -> Tensor:
    """Return bool [B, N], the nodes whose evidence drafters may learn from: valid and finite, in rows that go on."""
    nodes = torch.tensor(live, device=draft.value.device)[:, None].expand_as(draft.value)
    for mask in (draft.valid, None if evidence.bad is None else ~evidence.bad):
        nodes = nodes if mask is None else nodes & mask
    return nodes


def without_tail(draft: Draft, parents: Sequence[int]) -> Draft:
    """Return a draft over a static tree without the last nodes that are invalid in every row.

    Only the tail is cut, so nodes keep their numbers and a row's randomness is independent of other rows.

    Args:
        draft: The draft, with `valid`.
        parents: The parents of the tree.
    """
    count = int((draft.valid.any(0) * torch.arange(draft.tree.nodes, device=draft.valid.device)).max()) + 1
    if count == draft.tree.nodes:
        return draft
    law = draft.law if draft.law.row is None else replace(draft.law, row=draft.law.row[:count])
    return Draft(draft.value[:, :count], static_tree(parents[:count], draft.value.device), law, draft.valid[:, :count])


@dataclass(slots=True)
class Verdict:
    """The outcome of one round.

    Attributes:
        kind: "path" accepts the values on root..`node` and adds `correction` after them. "mask" accepts the nodes in
            `keep` at their positions; `correction` holds the values in place of the other nodes, or after a node.
            "regenerate" has the target make the value of rows in `redo`, which `correction` then holds.
        node: int64 [B], the deepest accepted node.
        path: int64 [B, D + 1], nodes root..node, padded with node.
        depth: int64 [B], the number of accepted drafted values (without the root).
        correction: The value after the path, [B] or [B, d] ("path", "regenerate"), or [B, N, ...] ("mask").
        keep: bool [B, N].
        redo: bool [B].
        paid: float [B], the total variation that the accepted values cost, see `Weights.paid`; None where that is None.
    """

    kind: Literal["path", "mask", "regenerate"]
    node: Tensor
    path: Tensor
    depth: Tensor
    correction: Tensor | None = None
    keep: Tensor | None = None
    redo: Tensor | None = None
    paid: Tensor | None = None


def run_of(draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor]:
    """Return the values that a path verdict emits.

    Returns:
        The drafted values then the correction, [B, D + 1, ...], and how many of them count, int64 [B]. Entries past the
        count repeat the correction.
    """
    if verdict.path.shape[1] == 1:
        return verdict.correction[:, None].to(draft.value.dtype), verdict.depth + 1
    values = gather_nodes(draft.value, verdict.path)
    tail = verdict.correction[:, None]
    run = values.roll(-1, 1)
    past = torch.arange(run.shape[1], device=run.device) >= verdict.depth[:, None]
    past = past.reshape(*past.shape, *([1] * (run.dim() - 2)))
    return run.where(~past, tail.to(run.dtype).expand_as(run)), verdict.depth + 1
