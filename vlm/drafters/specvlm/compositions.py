"""Compositions of compressors: weighted, concatenated, or selected by the question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.vlm.drafters.base.prompt_slots import PictureSpans
from mmspec.vlm.drafters.specvlm.compressors import Compressor, is_exploring

FuseFunction = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class CompressedPictures:
    """The compressed pictures of a batch. `weight`, float [B], are factors of value 1 for the attention input of a
    row's pictures, which carry the gate's gradient; None without a gradient."""

    rows: Tensor  # float [K, M, H]
    count: Tensor  # int64 [K], the first rows of each picture that are in use
    weight: Tensor | None = None


class BranchGate(nn.Module):
    """Float32 scores [B, branches]: a small perceptron on the question, the normed mean state [B, H]."""

    def __init__(self, width: int, inner: int, branches: int):
        super().__init__()
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, branches)

    def forward(self, question: Tensor) -> Tensor:
        return self.outer(F.silu(self.inner(F.rms_norm(question, question.shape[-1:])))).float()


class SingleBranch(nn.Module):
    """The same compressor for every picture."""

    def __init__(self, branch: Compressor):
        super().__init__()
        self.branch = branch

    def forward(self, pairs: Tensor, spans: PictureSpans, question: Tensor, fuse: FuseFunction) -> CompressedPictures:
        """Return the compressed pictures of pairs [K, N, 2 H], given the question [B, H]; `fuse` maps [..., 2 H] to
        [..., H]."""
        return CompressedPictures(compress(self.branch, pairs, spans.length, fuse), self.branch.count(spans.length))


class WeightedBranches(nn.Module):
    """A weighted sum of compressors with equally many rows; the gate gives the weights."""

    def __init__(self, branches: list[Compressor], gate: BranchGate):
        super().__init__()
        self.branches, self.gate = nn.ModuleList(branches), gate

    def forward(self, pairs: Tensor, spans: PictureSpans, question: Tensor, fuse: FuseFunction) -> CompressedPictures:
        rows, weight = fuse(pairs), self.gate(question).softmax(-1)[spans.row].to(pairs.dtype)
        mixed = sum(weight[:, i, None, None] * b(rows, spans.length) for i, b in enumerate(self.branches))
        return CompressedPictures(mixed, self.branches[0].count(spans.length))


class ConcatenatedBranches(nn.Module):
    """The rows of every compressor, one after the other."""

    def __init__(self, branches: list[Compressor]):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, pairs: Tensor, spans: PictureSpans, question: Tensor, fuse: FuseFunction) -> CompressedPictures:
        rows, length = fuse(pairs), spans.length
        parts = [branch(rows, length) for branch in self.branches]
        counts = [branch.count(length) for branch in self.branches]
        columns = [torch.arange(m.shape[1], device=rows.device) for m in parts]
        used = torch.cat([c < n[:, None] for c, n in zip(columns, counts, strict=True)], 1)
        order = (~used).long().argsort(dim=1, stable=True)
        rows = torch.cat(parts, 1)
        return CompressedPictures(rows.gather(1, order[..., None].expand_as(rows)), sum(counts))


class SelectedBranch(nn.Module):
    """A compressor per request: the gate's best, or in training a draw (straight-through Gumbel-softmax), run alone.
    Its weight is one-hot + soft - soft without gradient: the value is 1, the gradient that of the soft choice."""

    def __init__(self, branches: list[Compressor], gate: BranchGate, temperature: float):
        super().__init__()
        self.branches, self.gate, self.temperature = nn.ModuleList(branches), gate, temperature

    def choose(self, question: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the branch of each row, int64 [B], and its weight, float [B]; None outside training."""
        scores = self.gate(question)
        if not is_exploring(self):
            return scores.argmax(-1), None
        weights = F.gumbel_softmax(scores, self.temperature, hard=True)
        branch = weights.argmax(-1)
        return branch, weights.gather(1, branch[:, None])[:, 0]

    def forward(self, pairs: Tensor, spans: PictureSpans, question: Tensor, fuse: FuseFunction) -> CompressedPictures:
        branch, weight = self.choose(question)
        branch = branch[spans.row]
        parts, count = [], torch.zeros_like(spans.length)
        for number in branch.unique().tolist():  # the only wait for the target's states before the drafter's first pass
            (which,) = (branch == number).nonzero(as_tuple=True)
            length, chosen = spans.length[which], self.branches[number]
            parts.append((which, compress(chosen, pairs[which], length, fuse)))
            count[which] = chosen.count(length)
        rows = pairs.new_zeros(len(branch), max(m.shape[1] for _, m in parts), pairs.shape[-1] // 2)
        for which, part in parts:
            rows[which, : part.shape[1]] = part.to(rows.dtype)
        return CompressedPictures(rows, count, weight)


def compress(branch: Compressor, pairs: Tensor, length: Tensor, fuse: FuseFunction) -> Tensor:
    """Return compressed fused rows [K, M, H] of pairs [K, N, 2 H]. Averages are taken before the fusing layer, which
    gives the same result with fewer rows to fuse."""
    return fuse(branch(pairs, length)) if branch.averages else branch(fuse(pairs), length)


def keep_small_pictures(
    compressed: CompressedPictures, pairs: Tensor, spans: PictureSpans, fuse: FuseFunction
) -> CompressedPictures:
    """Replace compressed rows by the picture's own fused rows where compression would add rows."""
    (small,) = (compressed.count > spans.length).nonzero(as_tuple=True)
    if not len(small):
        return compressed
    own = fuse(pairs[small])
    rows = F.pad(compressed.rows, (0, 0, 0, max(own.shape[1] - compressed.rows.shape[1], 0)))
    rows[small, : own.shape[1]] = own.to(rows.dtype)
    return CompressedPictures(rows, compressed.count.minimum(spans.length), compressed.weight)
