from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from mmspec.core.layers.small_products import SmallProducts
from mmspec.core.round.draft import Verdict, gather_nodes

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
    """Base of targets whose rows decode side by side and stop independently. `paths` holds per row the nodes that the
    last round accepted (root first), empty for a stopped row. `errors` holds a sentence per failed row, which stops
    with its values."""

    verdicts: tuple[str, ...] = ("path",)
    device: torch.device

    def __init__(self, batch: int):
        self.batch = batch
        self.live = [True] * batch
        self.paths: list[list[int]] = []
        self.errors: dict[int, str] = {}

    @property
    def modules(self) -> tuple[nn.Module, ...]:
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
        """Add the run of a live row, update `live`, and return the number of accepted drafted values. A `failure` other
        than 0 ends it."""
        raise NotImplementedError

    def rooms(self, longest: int) -> list[int]:
        """Return how many drafted values each row can still accept beside the target's own; 0 for a stopped row."""
        room = self.room or [longest + 1] * self.batch
        return [max(min(longest, n - 1), 0) if alive else 0 for n, alive in zip(room, self.live, strict=True)]

    def commit_paths(self, verdict: Verdict, failure: Tensor | None, run: Tensor | None = None) -> list[int | None]:
        """Store the accepted paths and call `commit_row` for every live row. It reads the device once. `failure` [B, N]
        is nonzero where no value could be drawn after a node; `run` int64 [B, D + 1] is that of `run_of`, for values on
        the host."""
        lines = host_rows(verdict, failure, run).tolist()
        return self.commit_rows(lines, verdict.path.shape[1], fails=failure is not None, runs=run is not None)

    def commit_rows(self, lines: list[list[int]], width: int, *, fails: bool, runs: bool) -> list[int | None]:
        """`commit_paths` with `host_rows` already on the host; paths are `width` nodes wide."""
        self.paths, accepted = [], []
        for row, (depth, *line) in enumerate(lines):
            alive, failed = self.live[row], line[-1] if fails else 0
            values = line[width : width + depth + (not failed)] if runs else []
            self.paths.append(line[: depth + 1] if alive else [])
            accepted.append(self.commit_row(row, depth, failed, values) if alive else None)
        return accepted

    @property
    def steps(self) -> Tensor:
        """Return the number of nodes of each row's last path, int64 [B]."""
        return torch.tensor([len(path) for path in self.paths], device=self.device)

    def fail(self, row: int, why: str, reached: str) -> None:
        """Stop a row. `why` is the expectation and the actual value, `reached` how far the row had come."""
        self.live[row] = False
        self.errors[row] = f"row {row}: {why} after {reached}; the row stopped there"
