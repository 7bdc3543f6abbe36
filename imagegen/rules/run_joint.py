"""Joint verification of runs: neighbouring drafts with rising probabilities pass by the product of their ratios."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft
from mmspec.core.round.rules import Weights
from mmspec.core.round.rules.base import law_row
from mmspec.core.round.rules.relaxed import RelaxedRule
from mmspec.core.round.sampling import TINY, mass_at, ratio_of
from mmspec.io.validation import number, whole
from mmspec.methods import method


@method(
    "runjoint",
    domain=("image", "video"),
    kind="rule",
    title="run-joint",
    exact=False,
    about="neighbouring values with rising probabilities are verified by the product of their ratios",
    paper="SJD-SV",
    order=40,
    tiny={},
    benched=False,
)
class RunJoint(RelaxedRule):
    """Verifies runs of a chain jointly, as "SJD-SV" describes it. Relaxed, with alpha = 1 too, as enumeration shows.

    A run is a maximal sequence of neighbouring values with non-decreasing target probabilities. The suffix with at
    least alpha of the run's probability sum is accepted with probability min(1, product of p / q); the values before it
    are accepted along with it. On failure the run is shortened from the right and tested with the same uniform. Values
    before a failed suffix are then tested among themselves; the paper leaves this open. After the first failure the
    value is drawn from [p - q]+ (see `RelaxedRule`). A value of probability 0 is always tested.

    Whether a value is accepted may depend on later values of its run. The exact form of joint verification is block
    verification (rule "block").

    Args:
        alpha: The share of the run's probability sum in the tested suffix, 0.8 in the paper.
        longest: The most values in a run, None for no limit. 1 is token-wise verification, bit for bit.

    Raises:
        ValueError: A setting is out of range.
    """

    name = "runjoint (relaxed)"
    chains_only = True

    def __init__(self, alpha: float = 0.8, longest: int | None = None):
        if not 0 < number("alpha", alpha) <= 1:
            raise ValueError(f"alpha: expected a number above 0 and up to 1, got {alpha}")
        if longest is not None and whole("longest", longest) < 1:
            raise ValueError(f"longest: expected at least 1 or None, got {longest}")
        self.alpha, self.longest = alpha, longest

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        p, ratio = self._masses(weights, draft)
        live = torch.ones_like(p, dtype=torch.bool) if live is None else live[:, 1:]
        same = self._runs(p, live)  # [B, K, K]
        order = torch.arange(p.shape[1], device=p.device)
        upto, since = same & (order <= order[:, None]), same & (order >= order[:, None])
        held = torch.where(since, p[:, None], 0.0).sum(-1)
        whole = torch.where(same, p[:, None], 0.0).sum(-1)
        # value i precedes the suffix when the suffix can begin behind it
        behind = since & (order > order[:, None])
        before = (behind & (held >= self.alpha * whole)[:, None]).any(-1) & (ratio > -torch.inf)
        tested = torch.where(before, 0.0, ratio)
        joint = torch.where(before, _masked_sum(upto, ratio), _masked_sum(upto, tested)).exp().clamp_max(1)
        # with one uniform per run, at least m values are accepted with probability G_m, the largest joint[j] of j >= m;
        # testing value m on its own with G_m / G_(m-1) has the same distribution
        survival = torch.where(since, joint[:, None], 0.0).amax(-1)  # G
        previous = torch.cat((torch.ones_like(survival[:, :1]), survival[:, :-1]), 1)
        first = same.int().argmax(-1) == order
        share = torch.where(first, survival, survival / previous.clamp_min(TINY)).clamp_max(1)
        alone, exact = same.sum(-1) == 1, weights.threshold[:, 1:]
        threshold = torch.where(alone, exact, torch.where(live, share, 0.0).to(exact.dtype))
        return torch.cat((weights.threshold[:, :1], threshold), 1)

    def _masses(self, weights: Weights, draft: Draft) -> tuple[Tensor, Tensor]:
        """Return float64 [B, K], p of each drafted value and the logarithm of its p / q."""
        parent, token = draft.tree.parent, draft.value.clamp(0, weights.p.shape[-1] - 1)
        p = mass_at(weights.p, parent, token)[:, 1:].double()
        if draft.law.kind != "categorical":
            return p, p.log()
        q = mass_at(weights.q, law_row(draft)[parent], token)[:, 1:].double()
        return p, ratio_of(p, q).log()

    def _runs(self, p: Tensor, live: Tensor) -> Tensor:
        """Return bool [B, K, K], whether two values are in the same run. A value that was not drawn is a run by itself."""
        order = torch.arange(p.shape[1], device=p.device)
        new = torch.ones_like(live)
        new[:, 1:] = (p[:, 1:] < p[:, :-1]) | ~live[:, 1:] | ~live[:, :-1]
        start = torch.where(new, order, 0).cummax(-1).values
        if self.longest is not None:
            start = order - (order - start) % self.longest
        return start[:, :, None] == start[:, None, :]


def _masked_sum(chosen: Tensor, value: Tensor) -> Tensor:
    return torch.where(chosen, value[:, None], 0.0).sum(-1)
