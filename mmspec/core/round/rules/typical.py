from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict, expand_tree, gather_nodes
from mmspec.core.round.rules.base import Rule, Weights, at_node, live_nodes
from mmspec.core.round.rules.target_match import TargetMatch
from mmspec.io.validation import number
from mmspec.kernels.law import law_of, mass_at
from mmspec.methods import method


@method(
    "typical",
    domain="vlm",
    kind="rule",
    title="typical acceptance",
    exact=False,
    about="values that the target finds plausible are accepted",
    paper="Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
    order=12,
    tiny={},
)
class TypicalAcceptance(Rule):
    """Accepts the longest path on which every token has p(x) > min(threshold, alpha * exp(-H(p))). Relaxed.

    "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads"; H is the entropy of the target's
    distribution p at the token's parent. Of several longest paths the likeliest is accepted. The next token is drawn
    from p; the public code draws from the typical part of p or takes the top token. The defaults are those of the
    public generator, whose function has the two numbers swapped. Exact for greedy requests, which use target-match.
    With threshold of at least 1 and infinite alpha no token is accepted: every round emits a draw from p, which is
    exact too.

    Args:
        threshold: The probability above which a token is always plausible.
        alpha: The factor of exp(-H(p)), above which a token is plausible too.

    Raises:
        ValueError: A setting is not above 0.
    """

    name = "typical (relaxed)"
    exact = False
    proven_for = TargetMatch.proven_for

    def __init__(self, threshold: float = 0.09, alpha: float = 0.3):
        if not (number("threshold", threshold, infinite=True) > 0 and number("alpha", alpha, infinite=True) > 0):
            raise ValueError(f"expected threshold and alpha above 0, got {threshold} and {alpha}")
        self.threshold, self.alpha = threshold, alpha

    def rule_for(self, draft: Draft, evidence: Evidence) -> Rule:
        return TargetMatch() if evidence.greedy else self

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        """Thresholds of 0 and 1; `extra` is log p of every node's token at its parent."""
        p = law_of(evidence.scores)
        if draft.tree.nodes == 1:
            ones = p.new_ones(draft.batch, 1)
            return Weights(ones, "descend", p, extra=ones)
        entropy = -torch.xlogy(p, p).sum(-1)
        bar = (self.alpha * (-entropy).exp()).clamp(max=self.threshold)
        mass = mass_at(p, draft.tree.parent, draft.value.clamp(0, p.shape[-1] - 1))
        keep = mass > gather_nodes(bar, expand_tree(draft.tree.parent, draft.batch))
        live = live_nodes(evidence, draft)
        keep = keep if live is None else keep & live
        return Weights(keep.to(p.dtype), "descend", p, extra=mass.log())

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        tree, batch = draft.tree, draft.batch
        rows = torch.arange(batch, device=weights.threshold.device)
        keep, likely = weights.threshold.clone(), weights.extra.clone()
        keep[:, 0], likely[:, 0] = 1, 0
        path, depth = expand_tree(tree.path, batch), expand_tree(tree.depth, batch)
        flat = path.flatten(1)
        accepted = keep.gather(1, flat).view(path.shape).amin(-1) > 0
        # a path is padded with its last node, whose likelihood counts once
        counts = torch.arange(path.shape[-1], device=flat.device) <= depth[..., None]
        chance = likely.gather(1, flat).view(path.shape).where(counts, 0).sum(-1)
        longest = depth.where(accepted, -1)
        best = accepted & (longest == longest.amax(-1, keepdim=True))
        node = chance.where(best, -torch.inf).argmax(-1)
        return Verdict("path", node, path[rows, node], depth[rows, node])

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return at_node(weights.p, node)
