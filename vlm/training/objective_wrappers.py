"""Objectives that wrap another objective: glancing (Falcon), random block lengths, exits (S2D), token selection (AdaSPEC)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from mmspec.io.validation import Range, check_fields
from mmspec.vlm.training.losses import forward_kl
from mmspec.vlm.training.objective import DepthPredictions, Objective, predictions
from mmspec.vlm.training.teacher import VlmTeacherBatch


@dataclass(frozen=True, slots=True)
class ObjectiveWrapper:
    """An objective that computes its loss and notes through another objective with the same depths."""

    objective: Objective | ObjectiveWrapper

    @property
    def depths(self) -> int:
        return self.objective.depths


@dataclass(frozen=True, slots=True)
class Glancing(ObjectiveWrapper):
    """An Objective that shows the drafter some of the target's states ("Falcon: Faster and Parallel Inference of Large
    Language Models through Enhanced Semi-Autoregressive Drafting and Custom-Designed Decoding Tree").

    A pass without gradients counts the wrong tokens of the batch, averaged over the depths. In the training pass,
    lambda times as many of the pairs that drafts read come from the target, with lambda = slope * (1 - progress) +
    floor. Drafts read the pairs of earlier blocks, so the objective must be deeper than one block. Any drafter with
    blocks (`Flash`) can be trained. Unlike the public code, but like the paper, any pair of an answer may be shown, not
    only block starts."""

    slope: float = 0.4  # 0.4 in the paper, 0.35 in the public code
    floor: float = 0.0  # 0 in the paper, 0.1 in the public code

    def __post_init__(self) -> None:
        if min(self.slope, self.floor) < 0 or self.slope + self.floor > 1:
            raise ValueError(f"expected slope and floor >= 0 that sum to at most 1, got {self.slope} and {self.floor}")

    def __call__(
        self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Return loss and notes as Objective does, with the share of shown pairs as `shown`; use torch's generator."""
        block = getattr(drafter, "block", None)
        if block is None or self.objective.depths <= block:
            raise ValueError(
                f"glancing: expected a drafter of blocks and depths above its block, got block {block} and depths "
                f"{self.objective.depths}; train deeper, or without glancing"
            )
        reveal = self._reveal(drafter, parts, batch, self.slope * (1 - progress) + self.floor)
        if reveal is not None:
            drafter = _GlancingDrafter(drafter, reveal)
        loss, notes = self.objective(drafter, parts, batch, progress)
        shown = 0.0 if reveal is None else float(reveal.sum() / batch.answer[:, 1:].sum())
        return loss, {**notes, "shown": shown}

    @torch.no_grad()
    def _reveal(self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, share: float) -> Tensor | None:
        """Return the shown pairs, bool [B, T - 1]; None for none."""
        depths = predictions(drafter, parts, batch, self.objective.depths) if share else []
        wrong = sum(int((~depth.losses((), batch.ids.device).hits).sum()) for depth in depths)
        pairs = batch.answer[:, 1:]  # pair j holds the embedding of token j + 1
        count = min(round(share * wrong / max(len(depths), 1)), int(pairs.sum()))
        if not count:
            return None
        order = torch.rand(pairs.shape, device=pairs.device).masked_fill(~pairs, -1.0).flatten()
        reveal = torch.zeros_like(pairs)
        reveal.view(-1)[order.topk(count).indices] = True
        return reveal


class _GlancingDrafter:
    """A drafter that reads the pairs in `reveal`, bool [B, T - 1], with the target's states when it is unrolled."""

    def __init__(self, drafter: nn.Module, reveal: Tensor):
        self.drafter, self.reveal = drafter, reveal

    def unroll(self, slots: object, view: object, first: int, depths: int) -> list[Tensor]:
        return self.drafter.unroll(slots, view, first, depths, self.reveal)

    def __getattr__(self, name: str) -> object:
        return getattr(self.drafter, name)


@dataclass(frozen=True, slots=True)
class RandomBlockLength(ObjectiveWrapper):
    """An objective of a block drafter with a random block length in each step, uniform from 1 to the drafter's own. The
    same head can then draft blocks of every length, see `Flash.with_block`."""

    def __call__(
        self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Draw the length from torch's generator."""
        block = int(torch.randint(1, drafter.config.block + 1, ()))
        return self.objective(drafter.with_block(block), parts, batch, progress)


@dataclass(frozen=True, slots=True)
class SortedExits(ObjectiveWrapper):
    """The sum of an objective over the exits of a nested drafter, each of which drafts with its own features ("S2D:
    Sorted Speculative Decoding For More Efficient Deployment of Nested Large Language Models")."""

    def __call__(
        self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the sum of the losses, and the notes of the last exit with those of exit e as `exit{e}_hit0`..."""
        total, notes = torch.zeros((), device=batch.embeds.device), {}
        for layers in drafter.config.exits:
            loss, own = self.objective(drafter.with_exit(layers), parts, batch, progress)
            total = total + loss
            notes |= {f"exit{layers}_{name}": value for name, value in own.items()}
        return total, {**notes, **own}


@dataclass(frozen=True, slots=True)
class SelectTokens(ObjectiveWrapper):
    """An Objective over the places where the drafter is furthest behind a reference drafter ("AdaSPEC: Selective
    Knowledge Distillation for Efficient Speculative Decoders").

    At each depth it trains the ceil(share * n) of n places with the largest gap KL(p || q) - KL(p || r). Here q, r and
    p are the distributions of drafter, reference and target. A place that neither can learn has a small gap. The paper
    selects among one-step predictions of a batch; here each depth selects separately, because deeper predictions are
    worse throughout."""

    reference: nn.Module  # frozen, of the same kind and target; distilled on all tokens in the paper
    share: Annotated[float, Range(above=0, most=1)] = 0.4  # of trained places, 0.4 in the paper; 1 trains all

    __post_init__ = check_fields

    def __call__(
        self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        own = predictions(drafter, parts, batch, self.objective.depths)
        with torch.no_grad():
            others = predictions(self.reference, parts, batch, self.objective.depths)
        if [(depth.depth, depth.count) for depth in own] != [(depth.depth, depth.count) for depth in others]:
            raise ValueError(
                f"reference: expected a drafter that predicts at the same places, got {type(self.reference).__name__} "
                f"for {type(drafter).__name__}; train a reference of the same kind and sizes"
            )
        chosen = [
            mine.at(select_places(mine, other, self.share, batch.ids.device))
            for mine, other in zip(own, others, strict=True)
        ]
        return self.objective.over(chosen, batch.embeds.device)


@torch.no_grad()
def select_places(
    prediction: DepthPredictions, reference: DepthPredictions, share: float, device: torch.device
) -> Tensor:
    """Return the ceil(share * n) of n places where the drafter is furthest behind the reference, int64."""
    mine, other = (depth.losses((forward_kl,), device).values[:, 0] for depth in (prediction, reference))
    return (mine - other).topk(math.ceil(share * prediction.count)).indices
