from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Draft, Evidence, expand_tree
from mmspec.core.round.rules.base import Rule, TwoScalarRule, Weights, keep_live, residual_row
from mmspec.core.round.rules.copies import SiblingRule
from mmspec.core.round.rules.laws import Laws, laws_of
from mmspec.core.round.rules.siblings import (
    SiblingTable,
    gather_children,
    rejection_order,
    scatter_children,
    sibling_table,
    sibling_tables_by_depth,
    tree_layout,
)
from mmspec.core.round.tree import Tree
from mmspec.kernels.block_verification import block_thresholds, token_thresholds
from mmspec.kernels.dispatch import on_kernels
from mmspec.kernels.law import ratio_of
from mmspec.kernels.log_law import TINY, LogLaw, Residual
from mmspec.kernels.sequential_rejection import mass_left, reject_chain, reject_siblings, reject_tree
from mmspec.kernels.sibling_thresholds import kseq_discount
from mmspec.methods import method


@method(
    "token",
    domain=("vlm", "image", "video"),
    kind="rule",
    title="token-wise",
    exact=True,
    about="values of a chain are tested one after the other",
    paper="Fast Inference from Transformers via Speculative Decoding",
    order=1,
)
class TokenWise(TwoScalarRule):
    """Accepts each value with probability min(1, p / q) until the first rejection. Exact for chains drawn from q.

    "Fast Inference from Transformers via Speculative Decoding", "Accelerating Large Language Model Decoding with
    Speculative Sampling". The value after a rejection has the distribution [p - q]+, the value after the last node p.
    """

    name = "token"
    exact = True
    proven_for = frozenset({("categorical", "without_replacement")})
    chains_only = True

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        laws = laws_of(evidence, draft)
        threshold, alpha, beta = token_thresholds(laws.child_p, laws.child_q, laws.live)
        return Weights(threshold, "descend", laws.p, laws.q, alpha, beta)


@method(
    "block",
    domain=("vlm", "image", "video"),
    kind="rule",
    title="block verification",
    exact=True,
    about="the values of a chain are tested jointly",
    paper="Block Verification Accelerates Speculative Decoding",
    order=2,
)
class BlockVerification(TwoScalarRule):
    """Accepts the longest prefix whose joint test passes. Exact for chains drawn from q.

    "Block Verification Accelerates Speculative Decoding": never shorter on average than token-wise rejection. With P_0
    = 1, P_i = min(1, P_{i-1} p / q) and Z_i = sum [P_i p - q]+, prefix i passes with probability Z_i / (Z_i + 1 - P_i),
    the last prefix with P_i. The value after prefix i has the distribution [P_i p - q]+, the value after the last node
    p.
    """

    name = "block"
    exact = True
    proven_for = frozenset({("categorical", "without_replacement")})
    chains_only = True
    looks_ahead = True

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        laws = laws_of(evidence, draft)
        tested = laws.lumped
        threshold, weight, followed = block_thresholds(
            laws.child_p, laws.child_q, tested.p, tested.q, laws.row, laws.live
        )
        return Weights(threshold, "post", laws.p, laws.q, weight, followed)


@method(
    "recursive",
    domain=("vlm", "image", "video"),
    kind="rule",
    title="recursive rejection",
    exact=True,
    about="siblings are tested in the order they were drawn in",
    paper="Recursive Speculative Decoding",
    order=5,
)
class RecursiveRejection(SiblingRule):
    """Tests siblings in draw order against the residual of the earlier siblings, from the root down. Exact.

    "SpecInfer" for children drawn with replacement, "Recursive Speculative Decoding" for children drawn without. The
    residual after any number of rejections is [alpha p - beta q]+ with two scalars per node. Trees may grow by their own
    draws, as for traversal.

    Args:
        replacement: Whether siblings were drawn with replacement.
    """

    exact = True

    def __init__(self, replacement: bool = False):
        self.replacement = replacement
        self.name = "recursive_replacement" if replacement else "recursive"
        self.proven_for = frozenset({("categorical", "with_replacement" if replacement else "without_replacement")})

    def weigh_drawn(self, laws: Laws, tree: Tree) -> Weights:
        return _weigh(laws, tree, (sibling_table(tree),), "descend", self.replacement)


@method(
    "recursive_replacement",
    domain=("vlm", "image", "video"),
    kind="rule",
    title="recursive rejection, with replacement",
    exact=True,
    about="siblings drawn with replacement are tested in the order they were drawn in",
    paper="SpecInfer: Accelerating Large Language Model Serving with Tree-based Speculative Inference and Verification",
    order=6,
)
def _with_replacement() -> RecursiveRejection:
    return RecursiveRejection(replacement=True)


@method(
    "traversal",
    domain=("vlm", "image", "video"),
    kind="rule",
    title="traversal verification",
    exact=True,
    about="a path of a tree is judged as a whole, leaves before their ancestors",
    paper="Traversal Verification for Speculative Tree Decoding",
    order=3,
)
class Traversal(SiblingRule):
    """Tests leaves before ancestors, so that paths are judged as a whole. Exact for trees drawn without replacement.

    "Traversal Verification for Speculative Tree Decoding", with the threshold of block verification at every node; on a
    chain it is block verification. A node whose children were all rejected passes with probability a; each rejection
    changes a to Z / (Z + 1 - a) and the residual r to [a r - s]+ / Z. Trees may grow but not be pruned: whether a node
    exists may depend on everything drawn before it, in any branch, but not on its own value or on later draws.
    """

    name = "traversal"
    exact = True
    looks_ahead = True
    proven_for = frozenset({("categorical", "without_replacement")})

    def weigh_drawn(self, laws: Laws, tree: Tree) -> Weights:
        if tree.static and tree.nodes > 1 and not isinstance(laws.p, LogLaw):
            return _weigh_by_depth(laws, tree)
        return _weigh(laws, tree, sibling_tables_by_depth(tree), "post", False)


def _weigh(laws: Laws, tree: Tree, fans: Sequence[SiblingTable], order: str, replacement: bool) -> Weights:
    """Recursive rejection has a table of all parents at weight 1, traversal a table per depth."""
    live, columns, is_post = laws.live, tree.nodes, order == "post"
    p_rows, q_rows = laws.p, laws.q
    if on_kernels(laws.child_p) and tree.nodes > 1:  # one kernel for the whole tree
        nodes = rejection_order(tree, is_post)
        weight, alpha, beta = reject_tree(
            p_rows, q_rows, laws.row, laws.child_p, laws.child_q, laws.token, nodes, live, is_post, replacement
        )
        return Weights(keep_live(weight, live), order, p_rows, q_rows, alpha, beta)
    laws = laws.lumped
    if not tree.static:
        # the last column stands for missing children
        live = pad(torch.ones_like(laws.token, dtype=torch.bool) if live is None else live, (0, 1))
        columns += 1
    # 1. a leaf has weight 1 and the residual A p - B q with A = 1, B = 0
    state = laws.child_p.new_ones(3, len(laws.token), columns)  # per node the weight, A and B
    state[2] = 0
    if tree.nodes > 1:
        # 2. the children of each table are tested in turn; their rejections change the parent's state
        values = _at_children(laws, tree, live, replacement)
        for fan in fans:
            drawn = None if live is None else [gather_children(live, child) for child in fan.child]
            p, q = laws.p.index_select(1, fan.node), laws.q.index_select(1, laws.row[fan.node])
            start = state[0].index_select(1, fan.node) if is_post else state.new_ones(p.shape[:2])
            accepted, after = reject_siblings(
                p, q, start, [gather_children(values, child) for child in fan.child], drawn
            )
            for child, weight in zip(fan.child, accepted, strict=True):
                scatter_children(state[0], child, weight)
            if not tree.static:  # the table lists all nodes, even those without children at this depth
                after = torch.where(torch.stack(drawn).any(0), after, state[..., :-1])
            first = 0 if is_post else 1  # only traversal changes the weight of a parent
            state[first:].index_copy_(2, fan.node, after[first:])
    weight, alpha, beta = state[..., : tree.nodes].unbind()
    return Weights(keep_live(weight, laws.live), order, p_rows, q_rows, alpha, beta)


def _weigh_by_depth(laws: Laws, tree: Tree) -> Weights:
    """Do as `_weigh` for traversal of a static tree, with gathers shared and the final chain in a single step."""
    layout, live = tree_layout(tree), laws.live
    p_rows, q_rows = laws.p, laws.q
    laws = laws.lumped
    # 1. all rows that any depth reads, gathered at once
    p, q = laws.p.index_select(1, layout.parent), laws.q.index_select(1, laws.row[layout.parent])
    values = _at_children(laws, tree, live, False).index_select(2, layout.child)
    drawn = None if live is None else live.index_select(1, layout.child)
    # 2. depth by depth: the weights of the parents, then the tests of their children rank by rank
    weight, after = [laws.child_p.new_ones(len(laws.token), 1)], []
    for step in layout.steps:
        here = slice(step.first, step.first + step.count)  # the parents of this depth
        begun = weight[-1] if step.start is None else weight[-1].index_select(1, step.start)
        cut = [slice(start, start + count) for start, count in step.ranks]  # their children of each rank
        valid = None if drawn is None else [drawn[:, span] for span in cut]
        if step.chain:
            accepted, state = reject_chain(p[:, here], q[:, here], begun, values[:, :, cut[0]], valid and valid[0])
        else:
            ranked, state = reject_siblings(p[:, here], q[:, here], begun, [values[:, :, span] for span in cut], valid)
            accepted = ranked[0] if len(ranked) == 1 else torch.cat(ranked, 1)
        weight.append(accepted)
        after.append(state)
    # 3. back to the order of the nodes; leaves keep A = 1, B = 0
    weight = torch.cat(weight, 1).index_select(1, layout.place)
    state = torch.stack((weight, torch.ones_like(weight), torch.zeros_like(weight)))
    state.index_copy_(2, layout.parent, torch.cat(after, 2))
    threshold, alpha, beta = state.unbind()
    return Weights(keep_live(threshold, live), "post", p_rows, q_rows, alpha, beta)


def _at_children(laws: Laws, tree: Tree, live: Tensor | None, replacement: bool) -> Tensor:
    """Return float [4, B, N]: p, q and s at every node's token, and s / q, with s the distribution of the actual draw."""
    both = torch.stack((laws.child_p, laws.child_q))
    token = laws.token
    if not tree.static:
        both, token = pad(both, (0, 1)), pad(token, (0, 1))
    left = both.new_ones(both.shape[1:])
    if not replacement and tree.max_rank:
        fan = sibling_table(tree)
        tokens = [gather_children(token, child) for child in fan.child]
        drawn = None if live is None else [gather_children(live, child) for child in fan.child]
        for child, rest in zip(
            fan.child, mass_left(laws.q.index_select(1, laws.row[fan.node]), tokens, drawn), strict=True
        ):
            scatter_children(left, child, rest)
    return torch.cat((both, (both[1] / left).clamp_min_(TINY)[None], left.reciprocal()[None]))


@method(
    "kseq",
    domain=("vlm", "image", "video"),
    kind="rule",
    title="K-SEQ",
    exact=True,
    about="siblings drawn independently are tested in turn",
    paper="SpecTr: Fast Speculative Decoding via Optimal Transport",
    order=7,
)
class KSeq(Rule):
    """Accepts the first child that passes with min(1, p / (rho q)). Exact for children drawn independently from q.

    "SpecTr: Fast Speculative Decoding via Optimal Transport". The number n of children drawn may differ between nodes.
    rho is the smallest value that leaves a residual: with beta = sum min(p / rho, q), 1 - (1 - beta)^n <= rho beta.
    After rejections of all children the value has the distribution p - min(p / rho, q) (1 - (1 - beta)^n) / beta. The
    gain over recursive rejection is largest for flat distributions.
    """

    name = "kseq"
    exact = True
    proven_for = frozenset({("categorical", "with_replacement")})

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        laws = laws_of(evidence, draft)
        parent, node = expand_tree(draft.tree.parent, draft.batch), sibling_table(draft.tree).node
        drawn = torch.ones_like(laws.token) if laws.live is None else laws.live.long()
        drawn = drawn * (torch.arange(draft.tree.nodes, device=node.device) > 0)
        count = torch.zeros_like(laws.token).scatter_add_(1, parent, drawn).index_select(1, node)
        tested = laws.lumped
        scalars = kseq_discount(tested.p.index_select(1, node), tested.q.index_select(1, laws.row[node]), count)
        state = torch.ones(2, *count.shape[:1], draft.tree.nodes, dtype=laws.p.dtype, device=node.device)
        state[1] = 0
        rho, scale = state.index_copy_(2, node, torch.stack(scalars))
        threshold = ratio_of(laws.child_p, rho.gather(1, parent) * laws.child_q).clamp_max(1)
        return Weights(keep_live(threshold, laws.live), "descend", laws.p, laws.q, alpha=scale, extra=rho)

    def form(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Residual:
        return Residual("kseq", weights.p, weights.q, residual_row(draft), weights.alpha, weights.extra)
