from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Draft, Evidence, Verdict, expand_tree
from mmspec.core.round.keys import Keys, Purpose
from mmspec.kernels.dispatch import on_kernels
from mmspec.kernels.draft_tree import accepted_path, select_path
from mmspec.kernels.law import at_node
from mmspec.kernels.log_law import LogLaw, Residual
from mmspec.kernels.reduced_law import ReducedLaw
from mmspec.kernels.residual_sampling import residual_sample, residual_weights
from mmspec.kernels.sampling import sample_categorical

_EVIDENCE_NAMES = {"scores": "scores of tokens", "mean": "Gaussians", "reward": "rewards"}


@dataclass(slots=True)
class Weights:
    """The result of the first stage.

    Attributes:
        threshold: float [B, N], the probability that node i passes its own test; the root's entry is ignored.
        order: "descend" (from the root, first passing sibling), "post" (first passing node in post-order) or "mask"
            (every node is tested independently).
        p: The target's distributions [B, N, V] if the residual needs them, so that they are computed once.
        q: The drafter's distributions [B, M, V], likewise.
        alpha: float [B, N]; after all children of node i were rejected, its residual is [alpha p - beta q]+.
        beta: float [B, N], see `alpha`.
        extra: float [B, N], a further scalar per node for rules that need it.
        paid: float [B, N], the total variation from the target's distribution that the acceptance of each node costs; None
            where the rule is exact or does not know it.
    """

    threshold: Tensor
    order: Literal["descend", "post", "mask"]
    p: Tensor | LogLaw | None = None
    q: Tensor | LogLaw | ReducedLaw | None = None
    alpha: Tensor | None = None
    beta: Tensor | None = None
    extra: Tensor | None = None
    paid: Tensor | None = None


@lru_cache(maxsize=64)
def _root(batch: int, device: str) -> tuple[Tensor, Tensor]:
    """Return the node [B] and path [B, 1] of a draft of the root alone, which is always accepted; both are read-only."""
    node = torch.zeros(batch, dtype=torch.long, device=device)
    return node, node[:, None]


class UnsupportedCombination(ValueError):
    """A rule was combined with a draft or a target that it does not support."""


class Rule:
    """An acceptance rule. Subclasses set the class attributes and define `weigh` and either `form` or `residual`.

    Attributes:
        name: The name in tables.
        exact: Whether the emitted sequence has the target's distribution.
        proven_for: The supported pairs (law kind, how siblings were drawn); `check` refuses others.
        reads: The evidence field that the rule reads; targets without it are refused.
        chains_only: Whether the rule is undefined for siblings.
        looks_ahead: Whether the acceptance of a node may depend on values drawn below it. Such a rule refuses drafts
            that are reused after a rejection.
        takes_copies: Whether a draft may contain copied nodes beside drawn nodes, see `Copies`, and a second drawn
            tree, see `SecondTree`.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]
    proven_for: ClassVar[frozenset[tuple[str, str]]]
    reads: ClassVar[Literal["scores", "mean", "reward"]] = "scores"
    chains_only: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = False
    takes_copies: ClassVar[bool] = False

    def rule_for(self, draft: Draft, evidence: Evidence) -> Rule:
        """Return the rule to apply to this draft: `self`, or the rule that a dispatching rule selects."""
        return self

    def check_evidence(self, evidence: Evidence) -> None:
        """Refuse a target without the evidence that the rule reads."""
        if getattr(evidence, self.reads) is None:
            fields = " and ".join(
                name for field, name in _EVIDENCE_NAMES.items() if getattr(evidence, field) is not None
            )
            raise UnsupportedCombination(
                f"rule {self.name!r}: expected a target that gives {_EVIDENCE_NAMES[self.reads]}, got a target that gives "
                f"{fields or 'no evidence'}; use a rule for such targets, such as 'exact'"
            )

    def check(self, draft: Draft) -> None:
        """Refuse a draft whose q record or shape the rule is not proven for."""
        if draft.tree.nodes == 1:
            return
        pair = (draft.law.kind, draft.law.drawn)
        drawn = {"without_replacement", "with_replacement"}
        alike = drawn if not draft.tree.max_rank and pair[1] in drawn else {pair[1]}  # the same for a single child
        if not any((pair[0], way) in self.proven_for for way in alike):
            allowed = ", ".join(f"{k} {d}" for k, d in sorted(self.proven_for))
            raise UnsupportedCombination(
                f"rule {self.name!r}: expected drafts of kind {allowed}, got {pair[0]} {pair[1]}"
            )
        if self.looks_ahead and draft.law.reused:
            raise UnsupportedCombination(
                f"rule {self.name!r}: expected drafts drawn anew every round, got drafts reused after a rejection; "
                "use rule 'token' for chains and 'recursive' for trees"
            )
        mixed = [
            name
            for name, part in (("copied nodes", draft.law.copies), ("a second drawn tree", draft.law.second))
            if part
        ]
        if mixed and not self.takes_copies:
            raise UnsupportedCombination(
                f"rule {self.name!r}: expected drafts of a single source, got {mixed[0]} beside drawn nodes; use rule "
                "'exact', 'traversal', 'recursive' or 'match'"
            )
        if self.chains_only and draft.tree.max_rank:
            raise UnsupportedCombination(
                f"rule {self.name!r}: expected a chain, got a tree with siblings; draft with one child a node"
            )

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        """Return the thresholds of all nodes, and the terms of the residual."""
        raise TypeError(f"{type(self).__name__} must define weigh")

    def form(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Residual | None:
        """Return the residual after the accepted node int64 [B] in a form that kernels sample; None without such a form."""
        return None

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        """Return the unnormalised distribution float [B, V] of the value after the accepted node int64 [B]."""
        form = self.form(evidence, draft, weights, node)
        if form is None:
            raise TypeError(f"{type(self).__name__} must define form, residual or resample")
        return residual_weights(form, node)

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        """Return the verdict without its correction, from explicit uniforms float [B, N]."""
        tree, batch = draft.tree, draft.batch
        if tree.nodes == 1 and weights.order != "mask":
            node, path = _root(batch, str(uniform.device))
            return Verdict("path", node, path, node)
        if weights.order == "mask":
            keep = uniform < weights.threshold
            keep = keep if draft.valid is None else keep & draft.valid
            node = torch.zeros(batch, dtype=torch.long, device=uniform.device)
            return Verdict("mask", node, node[:, None], keep.sum(-1), keep=keep)
        shape, descend = (tree.parent, tree.ancestor, tree.sibling_rank, tree.post_rank), weights.order == "descend"
        if on_kernels(uniform):
            outcome = accepted_path(weights.threshold, uniform, shape, draft.valid, descend, tree.path, tree.depth)
        else:
            node = select_path(weights.threshold, uniform, *shape, draft.valid, descend)
            outcome = node, at_node(tree.path, node), at_node(tree.depth, node)
        verdict = Verdict("path", *outcome)
        if weights.paid is not None:
            accepted = torch.arange(1, verdict.path.shape[1], device=uniform.device) <= verdict.depth[:, None]
            verdict.paid = (weights.paid.gather(1, verdict.path)[:, 1:] * accepted).sum(-1)
        return verdict

    def draw(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor, keys: Keys) -> Tensor:
        """Draw the value after the accepted node int64 [B], int64 [B]. Kernels run a race over the residual's form; a
        CPU inverts a single uniform, which is cheaper there."""
        form = self.form(evidence, draft, weights, node)
        if form is not None and isinstance(form.p, LogLaw):
            return residual_sample(form, node, keys.seeds, keys.stream(Purpose.RESIDUAL))
        law = self.residual(evidence, draft, weights, node)
        return sample_categorical(law, keys.uniform(Purpose.RESIDUAL, 1)[:, 0])

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        """Set `verdict.correction`."""
        verdict.correction = self.draw(evidence, draft, weights, verdict.node, keys)
        return verdict


def live_nodes(evidence: Evidence, draft: Draft) -> Tensor | None:
    """Return bool [B, N], True where a node and all its ancestors are valid with finite evidence; None for everywhere.
    Children of a bad node count as not drawn."""
    if draft.valid is None and evidence.bad is None:
        return None
    tree, batch = draft.tree, draft.batch
    live = torch.ones_like(evidence.bad) if draft.valid is None else draft.valid
    if evidence.bad is not None:
        live = live & ~evidence.bad.gather(1, expand_tree(tree.parent, batch))
    root = torch.arange(tree.nodes, device=live.device) == 0
    return (tree.ancestor <= (live | root)[:, None, :]).all(-1)


def law_row(draft: Draft) -> Tensor:
    """Return int64 [N], the row of the q record for each node's children; 0, which is not read, where there is none."""
    if draft.law.row is None:
        return torch.zeros(draft.tree.nodes, dtype=torch.long, device=draft.value.device)
    return draft.law.row.clamp_min(0)


def residual_row(draft: Draft) -> Tensor:
    """Return `law_row`, with -1 where there is none."""
    return law_row(draft) if draft.law.row is None else draft.law.row


def keep_live(threshold: Tensor, live: Tensor | None) -> Tensor:
    return threshold if live is None else torch.where(live, threshold, 0.0)


class TwoScalarRule(Rule):
    """The residual is [alpha p - beta q]+ at every node."""

    def form(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Residual:
        return Residual("scaled", weights.p, weights.q, residual_row(draft), weights.alpha, weights.beta)


def is_followed(tensor: Tensor, live: Tensor | None) -> Tensor:
    """Return 1 where the next node of a chain was drawn, 0 at its end, shaped like `tensor` [B, N]."""
    if live is None:
        more = torch.ones_like(tensor)
        more[:, -1] = 0
        return more
    return pad(live[:, 1:], (0, 1)).to(tensor.dtype)
