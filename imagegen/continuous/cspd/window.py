"""A window of drafted tokens: the positions that it decides, the step of each, and the denoising trajectory of each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft
from mmspec.imagegen.continuous.head_sampling.head import Gaussian, Trajectory
from mmspec.imagegen.continuous.masked_target import MaskedTarget


@dataclass(slots=True)
class WindowDraft(Draft):
    """Drafted tokens in the order in which plain decoding would decide them; node 0 is padding."""

    step: Tensor | None = None  # int64 [B, N], the window's step that decides a node, from 0 up; -1 at padding
    steps: int = 0  # the number of steps
    trajectory: Trajectory | None = None  # the drafter's, of each node's value, rows [B, N]
    temperature: float = 1.0  # the sampler's, for both models


def settled_nodes(draft: WindowDraft, keep: Tensor, truncate: bool) -> Tensor:
    """Return bool [B, N], the nodes that a verdict on `keep` bool [B, N] settles; with `truncate` those up to the first
    step with a rejection. Tokens of a step are drawn independently, so none of it is lost."""
    drafted = draft.step >= 0
    if not truncate:
        return drafted
    last = draft.step.new_full((), torch.iinfo(torch.long).max)
    first = torch.where(drafted & ~keep, draft.step, last).amin(1, keepdim=True)
    return drafted & (draft.step <= first)


def reshape_rows(drawn: Trajectory, shape: tuple[int, ...]) -> Trajectory:
    """Return the trajectories of [B * N] tokens with rows [B, N]."""
    state, last = drawn.state.reshape(*shape, -1), drawn.last
    law = Gaussian(last.mean.reshape_as(state), last.log_scale.reshape_as(state))
    return Trajectory(drawn.value.reshape_as(state), law, state, drawn.log_det.reshape(shape))


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The steps of a window. Rows fill columns from the left, so that a column's meaning does not depend on other rows."""

    position: Tensor  # int64 [B, N] in the order in which they are revealed, L behind a row's end
    step: Tensor  # int64 [B, N], the window's step that decides each position, -1 behind the end
    counts: list[list[int]]  # positions per step and row

    def columns(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the columns of a step's positions, int64 [B, n], and whether each exists, bool [B, n]."""
        first = torch.tensor([sum(row[:step]) for row in zip(*self.counts, strict=True)], device=self.position.device)
        count = torch.tensor(self.counts[step], device=self.position.device)
        ahead = torch.arange(max(self.counts[step]), device=self.position.device)
        there = ahead < count[:, None]
        return (first[:, None] + ahead).clamp(max=self.position.shape[1] - 1), there


def plan_window(target: MaskedTarget, steps: int) -> WindowPlan:
    """Return the next `steps` steps of every live row, fewer where the image ends."""
    counts, left = [], [room if live else 0 for room, live in zip(target.room, target.live, strict=True)]
    while any(left) and len(counts) < steps:
        ends = target.step_ends(left)
        counts.append([rest - end for rest, end in zip(left, ends, strict=True)])
        left = ends
    total = torch.tensor([sum(row) for row in zip(*counts, strict=True)], device=target.device)
    order = target.rank.masked_fill(target.known, -1).argsort(dim=-1, descending=True, stable=True)
    column = torch.arange(int(max(map(sum, zip(*counts, strict=True)))), device=target.device)
    there = column < total[:, None]
    position = torch.where(there, order[:, : len(column)], target.total)
    bounds = torch.tensor(counts, device=target.device).T.cumsum(1)  # [B, S]
    step = (column >= bounds[:, :, None]).sum(1)
    return WindowPlan(position, torch.where(there, step, -1), counts)
