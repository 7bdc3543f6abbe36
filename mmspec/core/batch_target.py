"""The shared part of batched targets: rows that stop independently, and the accepted path of every row."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from mmspec.core.draft import Verdict, gather_nodes
from mmspec.core.small_products import SmallProducts

NOT_FINITE = "expected finite logits, got NaN or Inf"


def host_rows(verdict: Verdict, failure: Tensor | None, run: Tensor | None) -> Tensor:
    """Return everything that the host reads of a round, int64 [B, n]: depth, path, run and failure."""
    columns = [verdict.depth[:, None], verdict.path]
    if run is not None:
        columns.append(run)
    if failure is not None:
        columns.append(gather_nodes(failure, verdict.node[:, None]).long())
    return torch.cat(columns, 1)


class NotCopied:
    """Base of the objects of a request: their fields refer to one another and to functions of theirs, so none is copied."""

    def __reduce_ex__(self, protocol: int) -> tuple:
        name = type(self).__name__
        raise ValueError(
            f"{name}: expected objects that can be copied or pickled, got a request; begin another request"
        )


class BatchTarget(NotCopied):
    """Base of targets whose rows decode side by side and stop independently. A domain adds its passes and its values.

    Attributes:
        live: Whether each row goes on.
        paths: Per row, the nodes that the last round accepted (root first); empty for a stopped row.
        errors: Per failed row, a sentence. The row stops with the values it has; other rows go on.
    """

    verdicts: tuple[str, ...] = ("path",)
    device: torch.device

    def __init__(self, batch: int):
        self.batch = batch
        self.live = [True] * batch
        self.paths: list[list[int]] = []
        self.errors: dict[int, str] = {}

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The modules that passes over a few rows run."""
        return ()

    @cached_property
    def small_products(self) -> SmallProducts:
        """The block around such passes; users' code, such as a logits processor, runs outside it."""
        return SmallProducts(*self.modules)

    @property
    def done(self) -> bool:
        return not any(self.live)

    @property
    def room(self) -> list[int] | None:
        """Per row, how many values it may still emit; None without a limit."""
        raise NotImplementedError

    def commit_row(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        """Add the values of a live row, update `live`, and return the number of accepted drafted values.

        Args:
            row: The row.
            depth: The number of accepted drafted values.
            failure: Not 0 where the row cannot go on, see `commit_paths`.
            run: The accepted values and the value after them.
        """
        raise NotImplementedError

    def rooms(self, longest: int) -> list[int]:
        """Return per row how many drafted values it can still accept, at most `longest`; 0 for a stopped row.

        A place is reserved for the value that the target adds after the draft.
        """
        room = self.room or [longest + 1] * self.batch
        return [max(min(longest, n - 1), 0) if alive else 0 for n, alive in zip(room, self.live, strict=True)]

    def commit_paths(self, verdict: Verdict, failure: Tensor | None, run: Tensor | None = None) -> list[int | None]:
        """Store the accepted paths and call `commit_row` for every live row. It reads the device once.

        Args:
            verdict: The round's verdict.
            failure: bool or int64 [B, N], nonzero for nodes after which no value could be drawn; None for no such node.
            run: int64 [B, D + 1], see `run_of`, for targets that take values on the host.

        Returns:
            Per row the result of `commit_row`, None for a stopped row.
        """
        lines = host_rows(verdict, failure, run).tolist()
        return self.commit_rows(lines, verdict.path.shape[1], fails=failure is not None, runs=run is not None)

    def commit_rows(self, lines: list[list[int]], width: int, *, fails: bool, runs: bool) -> list[int | None]:
        """Do the same as `commit_paths` with `host_rows` already on the host; paths are `width` nodes wide."""
        self.paths, accepted = [], []
        for row, (depth, *line) in enumerate(lines):
            alive, failed = self.live[row], line[-1] if fails else 0
            values = line[width : width + depth + (not failed)] if runs else []
            self.paths.append(line[: depth + 1] if alive else [])
            accepted.append(self.commit_row(row, depth, failed, values) if alive else None)
        return accepted

    @property
    def steps(self) -> Tensor:
        """The number of nodes of each row's last path, int64 [B]."""
        return torch.tensor([len(path) for path in self.paths], device=self.device)

    def fail(self, row: int, why: str, reached: str) -> None:
        """Stop a row that cannot go on.

        Args:
            row: The row.
            why: The expectation and the actual value, as part of a sentence.
            reached: How far the row had come.
        """
        self.live[row] = False
        self.errors[row] = f"row {row}: {why} after {reached}; the row stopped there"
