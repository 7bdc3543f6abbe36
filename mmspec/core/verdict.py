"""What a rule decides about a draft: a path, a mask, or blocks to regenerate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.draft import Draft, gather_nodes


@dataclass(slots=True)
class Verdict:
    """The outcome of one round.

    kind: "path": the values on root..`node` are kept and `correction` follows them.
        "mask": the nodes in `keep` are kept where they stand; `correction` holds what the domain puts in the place of
        the others, or behind a node.
        "regenerate": rows in `redo` need the target itself to make the value; `correction` holds it afterwards.
    node: int64 [B], deepest accepted node.   path: int64 [B, D + 1], nodes root..node, padded with node.
    depth: int64 [B], accepted drafted values (the root not counted).
    keep: bool [B, N].   redo: bool [B].
    correction: the value after the path, [B] or [B, d] ("path", "regenerate"), or [B, N, ...] ("mask").
    """

    kind: Literal["path", "mask", "regenerate"]
    node: Tensor
    path: Tensor
    depth: Tensor
    correction: Tensor | None = None
    keep: Tensor | None = None
    redo: Tensor | None = None


def run_of(draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor]:
    """The values a path verdict emits: ([B, D + 1, ...] drafted values then the correction, int64 [B] how many count).

    Entries past the count repeat the correction.
    """
    if verdict.path.shape[1] == 1:
        return verdict.correction[:, None].to(draft.value.dtype), verdict.depth + 1
    values = gather_nodes(draft.value, verdict.path)
    tail = verdict.correction[:, None]
    run = values.roll(-1, 1)
    past = torch.arange(run.shape[1], device=run.device) >= verdict.depth[:, None]
    past = past.reshape(*past.shape, *([1] * (run.dim() - 2)))
    return run.where(~past, tail.to(run.dtype).expand_as(run)), verdict.depth + 1
