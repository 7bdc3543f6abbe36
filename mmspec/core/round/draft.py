from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.round.tree import Tree, chain, static_tree
from mmspec.kernels.draft_tree import take_nodes

Drawn = Literal["without_replacement", "with_replacement", "deterministic", "none"]


@dataclass(slots=True)
class Copies:
    """The nodes of a draft that were copied instead of drawn: paths, or tries of paths, behind the drawn nodes. A
    copied node follows all drawn siblings, its children are copied, its distribution is one-hot, and its token differs
    from its siblings'. `drawn` is the tree shared by all rows and first in the draft; a row may have copied nodes at
    its places where it drew nothing."""

    node: Tensor  # bool [B, N]
    drawn: Tree
    branching: bool = False  # rows may have several paths; else copied nodes are in path order


@dataclass(slots=True)
class SecondTree:
    """A tree of another drawn source under the same root, tested behind the first tree; both are the same for all rows.
    A token that both drew stays twice: to drop it would change the distribution. `Law.row` holds the second source's
    row of the root."""

    first: Tree  # first in the draft
    second: Tree  # with the shared root; its drawn nodes follow
    first_row: Tensor  # int64 [1], the row of `Law.scores` for the first source's children of the root


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
        """ "categorical", "gaussian", "onehot" or "none", as in `proven_for`."""
        if self.scores is not None or self.copies is not None:
            return "categorical"
        if self.mean is not None:
            return "gaussian"
        return "onehot" if self.drawn == "deterministic" else "none"


@dataclass(frozen=True, slots=True)
class EntryStates:
    """The states with which drafted nodes enter a layer of the target, from a drafter that has run the layers below.
    Their keys and values lie in the target's own cache, in the slots of its next pass."""

    layer: int  # the first that the target's pass still runs
    hidden: Tensor  # float [B, N, H], in node order
    value: Tensor  # the very tensor of the draft's values; otherwise the states do not count
    below: Mapping[int, Tensor] = field(default_factory=dict)  # float [B, N, H] each, entered into earlier layers


@dataclass(slots=True)
class Probes:
    """Inputs that a pass reads behind the N nodes of a draft and their tree: rules never see them, and no commit keeps
    them."""

    tree: Tree
    embeds: Tensor  # float [B or 1, P, H], input embeddings


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
    """The draft that a drafter would make of a row, for drafters that compute it from committed values at no cost."""

    kind: Hashable  # drafts of one kind share an acceptance rate
    values: list[int]


def expand_tree(tensor: Tensor, batch: int) -> Tensor:
    """Expand [R, ...] to [B, ...] without copying."""
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
    """Replace scores [..., V] that no value can be drawn from (NaN, +Inf, or -Inf throughout) by zeros. Return bool
    [...] for the replaced rows too, None where the host knows that there are none; it may read only with `asks`, never
    in a captured round."""
    bad = ~scores.amax(-1).isfinite()
    if asks and bad.is_cpu and not bad.any():
        return scores, None
    return torch.where(bad[..., None], 0.0, scores), bad


def learnable_nodes(draft: Draft, evidence: Evidence, live: Sequence[bool]) -> Tensor:
    """Return bool [B, N], the nodes that drafters may learn from: valid and finite, in rows that go on."""
    nodes = torch.tensor(live, device=draft.value.device)[:, None].expand_as(draft.value)
    for mask in (draft.valid, None if evidence.bad is None else ~evidence.bad):
        nodes = nodes if mask is None else nodes & mask
    return nodes


def without_tail(draft: Draft, parents: Sequence[int]) -> Draft:
    """Cut the last nodes that are invalid in every row of a static tree. Only the tail is cut, so other nodes keep
    their numbers."""
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
