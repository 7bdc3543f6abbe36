"""What targets of every domain keep of a batch: rows that stop each for itself, and what a round's paths leave of them."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Verdict, gather_nodes

NOT_FINITE = "expected finite logits, got NaN or Inf"


def host_rows(verdict: Verdict, failure: Tensor | None, run: Tensor | None) -> Tensor:
    """All that the host learns of a round, int64 [B, n]: depth, path, run and failure; see `BatchTarget.commit_paths`."""
    columns = [verdict.depth[:, None], verdict.path]
    if run is not None:
        columns.append(run)
    if failure is not None:
        columns.append(gather_nodes(failure, verdict.node[:, None]).long())
    return torch.cat(columns, 1)


class BatchTarget:
    """Base of targets whose rows grow side by side and stop each for itself. A domain adds its passes and its values.

    live: whether each row goes on.   paths: per row, the nodes the last round accepted (root first), empty for a stopped
    row.   errors: per failed row, one sentence; such a row stops and keeps what it had, the others go on.
    """

    verdicts: tuple[str, ...] = ("path",)
    device: torch.device

    def __init__(self, batch: int):
        self.batch = batch
        self.live = [True] * batch
        self.paths: list[list[int]] = []
        self.errors: dict[int, str] = {}

    @property
    def done(self) -> bool:
        return not any(self.live)

    @property
    def room(self) -> list[int] | None:
        """Per row, how many values it lacks of its longest; None without a limit."""
        raise NotImplementedError

    def commit_row(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        """Takes what a live row gained, says in `live` whether it goes on, and returns how many drafted values were kept.

        depth: accepted drafted values.   failure: see `commit_paths`.   run: the accepted values and the one behind them.
        """
        raise NotImplementedError

    def rooms(self, longest: int) -> list[int]:
        """Per row, how many drafted values can still be kept, at most `longest`; 0 for a row that has stopped.

        One value of a row's room is left to the target's own behind the draft.
        """
        room = self.room or [longest + 1] * self.batch
        return [max(min(longest, n - 1), 0) if alive else 0 for n, alive in zip(room, self.live, strict=True)]

    def commit_paths(self, verdict: Verdict, failure: Tensor | None, run: Tensor | None = None) -> list[int | None]:
        """Note a round's paths and `commit_row` every live row; per row what that returns, None for a stopped row.

        failure: bool or int64 [B, N], nodes behind which nothing could be drawn (0: something could); None for no such node.
        run: int64 [B, D + 1], see `run_of`, of targets that take values on the host.   One transfer to the host.
        """
        lines = host_rows(verdict, failure, run).tolist()
        return self.commit_rows(lines, verdict.path.shape[1], fails=failure is not None, runs=run is not None)

    def commit_rows(self, lines: list[list[int]], width: int, *, fails: bool, runs: bool) -> list[int | None]:
        """`commit_paths` on what the host has read: `host_rows` a round, whose paths are `width` nodes wide."""
        self.paths, accepted = [], []
        for row, (depth, *line) in enumerate(lines):
            alive, failed = self.live[row], line[-1] if fails else 0
            values = line[width : width + depth + (not failed)] if runs else []
            self.paths.append(line[: depth + 1] if alive else [])
            accepted.append(self.commit_row(row, depth, failed, values) if alive else None)
        return accepted

    @property
    def steps(self) -> Tensor:
        """int64 [B], how many nodes each row's last path has."""
        return torch.tensor([len(path) for path in self.paths], device=self.device)

    def fail(self, row: int, why: str, reached: str) -> None:
        """Stops a row that cannot go on.   why: what was expected and what came.   reached: how far it had come."""
        self.live[row] = False
        self.errors[row] = f"row {row}: {why} after {reached}; the row stopped there"
