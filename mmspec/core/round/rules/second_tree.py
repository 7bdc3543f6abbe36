"""Two drawn sources in a single draft: two trees under one root, tested in turn.

The children of the first source leave the residual r = [alpha p - beta q1]+ at the root, which is always accepted. The
second tree is then judged like a first, with r in place of p at the root. Since [[x]+ - y]+ = [x - y]+ for y >= 0, all
rejections leave [alpha p - beta_1 q1 - beta_2 q2]+. The residual is written out at the root only. Exact for any two
trees whose growth depends on earlier draws alone. A token that both sources drew is tested twice, since its second
distribution still thins the residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from mmspec.core.round.draft import SecondTree
from mmspec.core.round.rules.base import Weights
from mmspec.core.round.rules.laws import Laws
from mmspec.core.round.tree import Tree
from mmspec.kernels.law import mass_at
from mmspec.kernels.log_law import LogLaw, Residual
from mmspec.kernels.residual_sampling import residual_weights

WeighTree = Callable[[Laws, Tree], Weights]


def weigh_two_trees(weigh: WeighTree, laws: Laws, trees: SecondTree) -> Weights:
    """Return the weights of both trees in turn, the second with the root, whose row of p is the residual behind the
    first."""
    count = trees.first.nodes
    place = torch.arange(laws.token.shape[1], device=laws.token.device)
    root_row = torch.cat((trees.first_row, laws.row[1:count]))
    first = _part(laws, place[:count], trees.first, root_row)
    before = weigh(first, trees.first)
    behind = with_root(laws.p, _left(before, root_row))
    place = torch.cat((place[:1], place[count:]))
    second = _part(replace(laws, p=behind), place, trees.second, laws.row.index_select(0, place))
    after = weigh(second, trees.second)

    def joined(name: str) -> Tensor:
        one, two = getattr(before, name), getattr(after, name)
        return torch.cat((two[:, :1], one[:, 1:], two[:, 1:]), 1)

    return Weights(joined("threshold"), after.order, behind, laws.q, joined("alpha"), joined("beta"))


def laws_behind(laws: Laws, weights: Weights, tree: Tree) -> Laws:
    p = with_root(laws.p, law_at_root(weights.p))
    return replace(laws, p=p, child_p=mass_at(p, tree.parent, laws.token))


def with_root(p: Tensor | LogLaw, law: Tensor) -> Tensor | LogLaw:
    """Replace the distribution of p [B, N, V] after the root by `law` [B, V]."""
    if not isinstance(p, LogLaw):
        return torch.cat((law[:, None], p[:, 1:]), 1)
    scores = torch.cat((law.log()[:, None].to(p.scores.dtype), p.scores[:, 1:]), 1)
    # the scores of the root are log-probabilities, so their log-sum-exp is 0 at temperature 1 without a floor
    fixed = p.stats.new_tensor([0.0, 1.0, -torch.inf]).expand(len(law), 1, 3)
    return LogLaw(scores, torch.cat((fixed, p.stats[:, 1:]), 1), p.row)


def law_at_root(p: Tensor | LogLaw) -> Tensor:
    node = torch.zeros(p.shape[0], dtype=torch.long, device=p.device)
    return residual_weights(Residual("without", p), node)


def _left(weights: Weights, row: Tensor) -> Tensor:
    """The normalised residual at the root, or p where the first tree cannot be rejected, float [B, V]."""
    root = torch.zeros(len(weights.threshold), dtype=torch.long, device=row.device)
    left = residual_weights(Residual("scaled", weights.p, weights.q, row, weights.alpha, weights.beta), root)
    return left / left.sum(-1, keepdim=True)


def _part(laws: Laws, place: Tensor, tree: Tree, row: Tensor) -> Laws:
    p = laws.p.index_select(1, place)
    token = laws.token.index_select(1, place)
    parent, origin = tree.parent[0], row[tree.parent]
    live = None if laws.live is None else laws.live.index_select(1, place)
    return Laws(p, laws.q, mass_at(p, parent, token), mass_at(laws.q, origin[0], token), token, row, origin, live)
