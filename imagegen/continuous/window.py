"""A window of drafted tokens as a round carries it: which autoregressive step decides each, and the walk behind each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.imagegen.continuous.head import Gaussian, Trajectory


@dataclass(slots=True)
class WindowDraft(Draft):
    """Drafted tokens in the order in which plain decoding would decide them; node 0 only pads.

    step: int64 [B, N], which of the window's autoregressive steps decides a node, from 0 up; -1 at pads.   steps: how many
    there are.
    trajectory: the drafter's walk to each node's value, rows [B, N].   temperature: of the sampler, in both walks.
    """

    step: Tensor | None = None
    steps: int = 0
    trajectory: Trajectory | None = None
    temperature: float = 1.0


def settles(draft: WindowDraft, keep: Tensor, truncate: bool) -> Tensor:
    """bool [B, N], nodes whose token is settled by a verdict.

    truncate False: all of them, whatever became of the others. True: those of all steps up to the first one that holds a
    node that is not kept; tokens of one step are drawn independently of each other, so none of that step is lost.
    """
    drafted = draft.step >= 0
    if not truncate:
        return drafted
    last = draft.step.new_full((), torch.iinfo(torch.long).max)
    first = torch.where(drafted & ~keep, draft.step, last).amin(1, keepdim=True)
    return drafted & (draft.step <= first)


def rows_of(walk: Trajectory, shape: tuple[int, ...]) -> Trajectory:
    """A walk of [B * N] tokens with rows [B, N]."""
    state, last = walk.state.reshape(*shape, -1), walk.last
    law = Gaussian(last.mean.reshape_as(state), last.log_scale.reshape_as(state))
    return Trajectory(walk.value.reshape_as(state), law, state, walk.log_det.reshape(shape))
