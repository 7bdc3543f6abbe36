"""Decoding in another order than raster order: the target, the base of its rules, and the base of its decodings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict, gather_nodes, root_only
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules.base import Rule, UnsupportedCombination, Weights
from mmspec.core.round.sampling import law_of, sample_categorical
from mmspec.core.round.tree import Tree
from mmspec.imagegen.filled_target import MaskFilledTarget
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.pipeline import ImageRequest
from mmspec.imagegen.target import ImageTarget
from mmspec.imagegen.user_code import check_code


class AnyOrderTarget(MaskFilledTarget, ImageTarget):
    """A batch of images that is filled in the order the drafter chooses; forced values are known from the start.
    `Draft.index` has the place of every node; `total` is padding. Roots hold known values; an invalid root is fed but
    not stored. A node attends to the prompt, its ancestors, and every place up to its own that is stored or fed as a
    valid root. Empty places, whose zero keys would take part of the softmax, and drafts of other chains are hidden.
    Place i uses cache slot P + i, so feeding it again overwrites its keys and values. A correction int64 [B, N] is the
    value behind each node, -1 for none, stored where that place is open and not known."""

    def __init__(self, model: ImageModel, condition: object, **settings: Any):
        super().__init__(model, condition, **settings)
        forced = self.geometry.forced.to(self.device)
        self._stored = torch.zeros_like(self._known)
        self.stored = self._stored[:, :-1]  # places whose cached keys and values are of their current value
        self.values += forced.clamp_min(0)
        self.known |= forced >= 0
        self._column = torch.arange(self.total, device=self.device)
        self.prompt = 0

    @torch.no_grad()
    def prefill(self) -> tuple[Draft, Evidence]:
        scored, self.prompt = self.model.prefill(self.condition, self.cache, self.copies == 2)
        self.prompt_hidden = scored.prompt_hidden
        self.cache.advance(self.prompt)
        draft = root_only(self.pending)
        draft.index = self.last[:, None]
        return draft, self._evidence(draft, scored)

    @torch.no_grad()
    def score(self, draft: Draft) -> Evidence:
        index, nodes = draft.index, draft.tree.nodes
        spare = self.total + torch.arange(nodes, device=self.device)
        place = index if draft.valid is None else torch.where(draft.valid, index, spare)
        bias = self._bias(self._sees(draft, place))
        slot, value, index = self.prompt + place, draft.value, index.clamp(0, self.total - 1)
        if self.copies > 1:
            slot, value, index = (x.repeat(self.copies, 1) for x in (slot, value, index))
        self.cache.place(slot, self.prompt + self.total + nodes)
        with self.small_products:
            scored = self.model.forward(value, index, bias, self.cache)
        return self._evidence(draft, scored)

    def _sees(self, draft: Draft, place: Tensor) -> Tensor:
        """Return bool [B, N, total + N], the places and spare slots that each node attends to."""
        index, tree = draft.index, draft.tree
        known = is_root(tree)
        known = known if draft.valid is None else known & draft.valid
        beside = known[:, None, :] & (index[:, None, :] <= index[:, :, None])
        below = self.stored[:, None, :] & (self._column <= index[:, :, None])
        sees = torch.nn.functional.pad(below, (0, tree.nodes))
        column = place[:, None, :].expand(-1, tree.nodes, -1)
        return sees.scatter_(2, column, (tree.ancestor | beside).expand_as(column))

    def _bias(self, sees: Tensor) -> Tensor:
        """Return the additive mask [C * B, 1, N, P + total + N]."""
        dtype, hidden = self.model.dtype, self.cache.hidden
        zero, low = torch.zeros((), dtype=dtype, device=self.device), torch.finfo(dtype).min
        bias = torch.where(sees, zero, low)
        if self.copies > 1:
            bias = bias.repeat(self.copies, 1, 1)
        bias = torch.nn.functional.pad(bias, (self.prompt, 0))
        if hidden is not None:
            bias[:, :, : hidden.shape[1]].masked_fill_(hidden[:, None, :], low)
        return bias[:, None]

    def settle(self, draft: Draft, verdict: Verdict, runs: Tensor) -> Tensor:
        runs = runs[:, None]
        fed = runs & (draft.index >= 0) & (draft.index < self.total)
        fed = fed if draft.valid is None else fed & draft.valid
        keep = verdict.keep & fed
        self._stored.scatter_(1, torch.where(fed, draft.index, self.total), keep)
        self.put(torch.where(keep, draft.index, self.total), draft.value)
        behind = (draft.index + 1).clamp(max=self.total)
        wanted = runs & (verdict.correction >= 0) & (behind < self.total) & ~self._known.gather(1, behind)
        wanted = wanted if draft.open is None else wanted & draft.open
        self.put(torch.where(wanted, behind, self.total), verdict.correction)
        return (keep & ~is_root(draft.tree)).sum(1)


class AnyOrderRule(Rule):
    """Base of the relaxed rules; the root of every chain is accepted. The correction int64 [B, N] holds a value behind
    each chain's last accepted node, else -1. Chain c draws from lane c, so a single chain gives plain decoding's."""

    exact = False

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        end = chain_ends(draft.tree, verdict.keep)
        if evidence.greedy:
            value = gather_nodes(evidence.scores, end).argmax(-1)
        else:
            value = sample_categorical(self.law(evidence, draft, end), keys.uniform(Purpose.RESIDUAL, end.shape[1]))
        verdict.correction = torch.full_like(draft.value, -1).scatter_(1, end, value)
        return verdict

    def law(self, evidence: Evidence, draft: Draft, end: Tensor) -> Tensor:
        """Return unnormalised probabilities float [B, C, V] behind each chain's last node `end` int64 [B, C]."""
        return law_of(gather_nodes(evidence.scores, end))


def chain_roots(tree: Tree) -> Tensor:
    """Return int64 [C], the nodes that are their own parents."""
    return tree.parent.new_zeros(1) if tree.roots is None else tree.roots


def is_root(tree: Tree) -> Tensor:
    """Return bool [R, N], whether each node is its own parent."""
    return tree.parent == torch.arange(tree.nodes, device=tree.parent.device)


def accepted_from_root(tree: Tree, keep: Tensor) -> Tensor:
    """Return bool [B, N], the nodes of `keep` bool [B, N] whose ancestors are all in it; roots always are."""
    return (tree.ancestor <= (keep | is_root(tree))[:, None, :]).all(-1)


def chain_ends(tree: Tree, keep: Tensor) -> Tensor:
    """Return int64 [B, C], the last accepted node of each chain."""
    root = chain_roots(tree)
    chain = torch.searchsorted(root, torch.arange(tree.nodes, device=root.device), right=True) - 1
    count = torch.zeros(len(keep), len(root), dtype=torch.long, device=root.device)
    return root - 1 + count.index_add_(1, chain, accepted_from_root(tree, keep).long())


class AnyOrderDecoding(ABC):
    """A drafter with its own decoding order. Relaxed: it brings the target that is filled in that order, and its rule."""

    __slots__ = ()

    def prepare(self, model: ImageModel, request: ImageRequest) -> tuple[AnyOrderTarget, Self, Rule]:
        if request.rule is not None:
            rule = getattr(request.rule, "name", request.rule)
            raise UnsupportedCombination(
                f"rule: expected no rule, since decoding {self.name!r} is relaxed and brings its own, got {rule!r}; "
                "leave it out"
            )
        check_code(model)
        return request.target(model, AnyOrderTarget), self, self.rule(model)

    @abstractmethod
    def rule(self, model: ImageModel) -> Rule:
        """Return the rule of this decoding's drafts on `model`."""
