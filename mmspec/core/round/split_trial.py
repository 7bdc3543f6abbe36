"""A trial of a target's passes: tokens that are read together must get the scores that they get in single steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Law, Verdict, root_only
from mmspec.core.round.tree import chain

# largest difference of two logits that another order of summation explains, in standard deviations of a row's logits
_SLACK = {torch.float32: 2e-3, torch.float64: 1e-6}
_SLACK_HALF = 0.25


class TrialMismatch(Exception):
    """A difference between drafted passes and single steps; the message continues "got ..."."""


def rounding_gap(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> float:
    """Return a share of the tolerance of a dtype; NaN fails too."""
    ours, theirs = ours.float(), theirs.float()
    slack = _SLACK.get(dtype, _SLACK_HALF)
    return float((ours - theirs).abs().amax() / (slack * theirs.std().clamp_min(1e-6)))


def path_to(draft: Draft, node: Tensor, correction: Tensor) -> Verdict:
    batch, tree = draft.batch, draft.tree
    path, depth = tree.path.expand(batch, -1, -1), tree.depth.expand(batch, -1)
    rows = torch.arange(batch, device=node.device)
    return Verdict("path", node, path[rows, node], depth[rows, node], correction)


def compare_splits(
    open_target: Callable[[], Any],
    values: Tensor,  # int64 [B, N], of which the first follows the prompt
    dtype: torch.dtype,  # of the model
) -> None:
    """Compare a pass over a chain with single steps; scores that differ by more than rounding are a `TrialMismatch`."""
    zero = torch.zeros_like(values[:, 0])

    def opened() -> Any:
        target = open_target()
        draft, evidence = target.prefill()
        target.commit(draft, evidence, path_to(draft, zero, values[:, 0]))
        return target

    draft = Draft(values, chain(values.shape[1] - 1, values.device), Law("deterministic"))
    together = _without_infinity(opened().score(draft).scores)
    target = opened()
    for step, value in enumerate(values.unbind(1)):
        draft = root_only(value)
        evidence = target.score(draft)
        for row, alone in enumerate(_without_infinity(evidence.scores)[:, 0]):
            if not rounding_gap(together[row, step], alone, dtype) <= 1:
                raise TrialMismatch(f"other scores in a pass over {values.shape[1]} tokens")
        target.commit(draft, evidence, path_to(draft, zero, values[:, (step + 1) % values.shape[1]]))


def _without_infinity(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores == -torch.inf, 0.0)
