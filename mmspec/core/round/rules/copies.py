"""Copied nodes beside drawn nodes: one-hot distributions, tested after the drawn siblings.

Let r = [alpha p - beta q]+ be the residual that the drawn siblings left at a node of weight a. A copied child x passes
with w = a r(x). Its rejection removes x from r, changes the weight to (a - w) / (1 - w), and scales alpha and beta
alike. Copied children therefore pass with w_j / (1 - w_1 - ... - w_{j-1}), where w_j = a r(x_j), and all their
rejections leave (a - sum w) / (1 - sum w): the residual is two scalars and the removed tokens. Exact for any paths that
are known before the draft is drawn. A copied child that repeats an earlier sibling is always rejected, so it may be
omitted."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Copies, Draft, Evidence, expand_tree
from mmspec.core.round.rules.base import TwoScalarRule, Weights, keep_live
from mmspec.core.round.rules.laws import Laws, laws_of
from mmspec.core.round.rules.second_tree import laws_behind, weigh_two_trees
from mmspec.core.round.tree import Tree
from mmspec.kernels.log_law import TINY, LogLaw, Residual


class SiblingRule(TwoScalarRule):
    """Base of rules that test siblings in turn; a subclass weighs drawn nodes with `weigh_drawn`."""

    takes_copies: ClassVar[bool] = True

    def weigh_drawn(self, laws: Laws, tree: Tree) -> Weights:
        """Return the weights of a tree of drawn nodes."""
        raise TypeError(f"{type(self).__name__} must define weigh_drawn")

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        laws, copies, second = laws_of(evidence, draft), draft.law.copies, draft.law.second
        tree = draft.tree if copies is None else copies.drawn
        drawn = laws if copies is None else drawn_laws(laws, copies)
        if second is None:
            weights = self.weigh_drawn(drawn, tree)
        else:
            weights = weigh_two_trees(self.weigh_drawn, drawn, second)
            laws = laws if copies is None else laws_behind(laws, weights, draft.tree)
        return weights if copies is None else weigh_copies(weights, laws, draft.tree, copies)

    def form(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Residual:
        residual = super().form(evidence, draft, weights, node)
        if draft.law.copies is None:
            return residual
        # `extra` is nonzero only at copied nodes that can be rejected
        removed = (draft.tree.parent == node[:, None]) & (weights.extra > 0)
        return replace(residual, token=draft.value.clamp(0, weights.p.shape[-1] - 1), remove=removed)


def drawn_laws(laws: Laws, copies: Copies) -> Laws:
    """Positions that copied nodes use in the tree of drawn nodes are not live."""
    count = copies.drawn.nodes
    place = torch.arange(count, device=laws.token.device)
    p = laws.p.index_select(1, place) if isinstance(laws.p, LogLaw) else laws.p[:, :count]
    live = ~copies.node if laws.live is None else laws.live & ~copies.node
    return Laws(
        p,
        laws.q,
        laws.child_p[:, :count],
        laws.child_q[:, :count],
        laws.token[:, :count],
        laws.row[:count],
        laws.origin[:, :count],
        live[:, :count],
    )


def weigh_copies(drawn: Weights, laws: Laws, tree: Tree, copies: Copies) -> Weights:
    """Extend the weights to the whole tree, after all rejections; `extra` is the chance that a copied node passes, 0 at
    drawn nodes."""
    batch, nodes = laws.token.shape
    post, copied, parent = drawn.order == "post", copies.node, expand_tree(tree.parent, batch)
    start, alpha, beta = _states(drawn, copies.drawn, nodes)
    tested = copied if laws.live is None else copied & laws.live
    entry = (alpha.gather(1, parent) * laws.child_p - beta.gather(1, parent) * laws.child_q).nan_to_num_(0.0)
    inside = copied.gather(1, parent)
    passing = torch.where(inside, laws.child_p, entry).clamp_(0, 1)
    if copies.branching:
        passed, tried = _tries(passing, tested, inside, start, tree, post)
    else:
        # a path's weight is the product down to the node, since its nodes are in order
        passing = torch.where(copied, passing, 1.0).cumprod(-1) if post else passing
        passed, tried = torch.where(copied, passing, start), torch.where(tested, passing, 0.0)
    lost = torch.zeros_like(tried).scatter_add_(1, parent, tried)  # the mass of each node's copied children
    room = (1 - lost).clamp_min_(TINY)
    start = passed if post else torch.where(copied, 1.0, start)
    threshold = (start - lost).clamp_min_(0).div_(room) if post else passed
    alpha, beta = torch.where(copied, start, alpha).div_(room), torch.where(copied, 0.0, beta).div_(room)
    return Weights(keep_live(threshold, laws.live), drawn.order, laws.p, laws.q, alpha, beta, tried)


def _tries(
    passing: Tensor, tested: Tensor, inside: Tensor, start: Tensor, tree: Tree, post: bool
) -> tuple[Tensor, Tensor]:
    """Return the chance at which every node passes before its children are tested, and the mass w of copied nodes; [B,
    N] each. `passing` is the mass of each node for a copied parent of weight 1, or for its drawn parent; `inside` marks
    nodes with a copied parent; `start` weighs drawn nodes. With `post` weights multiply down the paths."""
    parent = expand_tree(tree.parent, len(passing))
    column = torch.arange(tree.nodes, device=parent.device)
    earlier = (parent[:, :, None] == parent[:, None, :]) & (column < column[:, None]) & tested[:, None, :]
    earlier, tried = earlier.to(passing.dtype), torch.where(tested, passing, 0.0)
    for _ in range(tree.max_depth if post else 1):  # weights settle from the drawn nodes downwards
        before = (earlier @ tried[..., None])[..., 0]
        start = torch.where(tested, tried.div((1 - before).clamp_min_(TINY)).clamp_(0, 1), start)
        if post:
            tried = torch.where(tested, torch.where(inside, start.gather(1, parent), 1.0) * passing, 0.0)
    return start, tried


def _states(drawn: Weights, tree: Tree, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return weight, A and B of the drawn nodes with their drawn children rejected, [B, nodes] each; 0 elsewhere."""
    weight, alpha = drawn.threshold, drawn.alpha
    if drawn.order == "post":
        leaf = torch.ones_like(tree.parent, dtype=torch.bool).scatter_(1, tree.parent[:, 1:], False)
        alpha = torch.where(leaf, weight, alpha)  # a leaf's A is its weight; only the ratio of A to B matters elsewhere
    return tuple(pad(x, (0, nodes - tree.nodes)) for x in (weight, alpha, drawn.beta))
