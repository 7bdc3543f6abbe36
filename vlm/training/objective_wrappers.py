"""Objectives around another objective: glancing (Falcon), random block lengths, and token selection (AdaSPEC)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.vlm.training.losses import forward_kl
from mmspec.vlm.training.objective import DepthPredictions, Objective, predictions
from mmspec.vlm.training.teacher import VlmTeacherBatch


@dataclass(frozen=True, slots=True)
class ObjectiveWrapper:
    """An objective that computes its loss and notes through another objective of the same depths."""

    objective: Objective | ObjectiveWrapper

    @property
    def depths(self) -> int:
        """How deep the objective goes."""
        return self.objective.depths


@dataclass(frozen=True, slots=True)
class Glancing(ObjectiveWrapper):
    """An Objective run twice ("Falcon: Faster and Parallel Inference of Large Language Models through Enhanced
    Semi-Autoregressive Drafting and Custom-Designed Decoding Tree").

    A pass without gradients counts how many tokens of the batch the drafter gets wrong (averaged over the depths); then
    lambda times as many of the pairs that drafts read are the target's own in the pass that trains. What a draft reads are
    the pairs of blocks before the one predicted, so the objective has to be deeper than one block.

    lambda = slope * (1 - progress) + floor. The paper has 0.4 * (E - e) / E at epoch e of E, which is the default; the
    public code 0.35 * (E - e) / E + 0.1, and picks among block starts only. Here as in the paper any pair of the answers may
    be picked. A drafter of any kind with blocks (`Flash`) can be trained so; Falcon's LSTM drafter is not built.
    """

    slope: float = 0.4
    floor: float = 0.0

    def __post_init__(self) -> None:
        if min(self.slope, self.floor) < 0 or self.slope + self.floor > 1:
            raise ValueError(f"expected slope and floor >= 0 that sum to at most 1, got {self.slope} and {self.floor}")

    def __call__(
        self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss and notes as of Objective, with the share of pairs shown as `shown`. Draws from torch's generator.

        progress: share of training done, 0 to 1.
        Raises ValueError for a drafter without blocks, and an objective that never leaves the first block.
        """
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
        """bool [B, T - 1], the pairs shown; None for none."""
        made = predictions(drafter, parts, batch, self.objective.depths) if share else []
        wrong = sum(int((~one.losses((), batch.ids.device).hits).sum()) for one in made)
        pairs = batch.answer[:, 1:]  # pair j holds the embedding of token j + 1
        count = min(round(share * wrong / max(len(made), 1)), int(pairs.sum()))
        if not count:
            return None
        order = torch.rand(pairs.shape, device=pairs.device).masked_fill(~pairs, -1.0).flatten()
        reveal = torch.zeros_like(pairs)
        reveal.view(-1)[order.topk(count).indices] = True
        return reveal


class _GlancingDrafter:
    """The drafter, told which pairs to read with the target's states while it is unrolled."""

    def __init__(self, drafter: nn.Module, reveal: Tensor):
        self.drafter, self.reveal = drafter, reveal

    def unroll(self, slots: object, view: object, first: int, depths: int) -> list[Tensor]:
        return self.drafter.unroll(slots, view, first, depths, self.reveal)

    def __getattr__(self, name: str) -> object:
        return getattr(self.drafter, name)


@dataclass(frozen=True, slots=True)
class RandomBlockLength(ObjectiveWrapper):
    """An objective of a block drafter, each step with another block length from 1 to the drafter's own, drawn evenly.

    One head then serves all of them: `Flash.with_block` drafts as it was trained.
    """

    def __call__(
        self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss and notes as of the objective. Draws from torch's generator."""
        block = int(torch.randint(1, drafter.config.block + 1, ()))
        return self.objective(drafter.with_block(block), parts, batch, progress)


@dataclass(frozen=True, slots=True)
class SelectTokens(ObjectiveWrapper):
    """An Objective over a share of the places: those where the drafter is furthest behind a reference drafter ("AdaSPEC:
    Selective Knowledge Distillation for Efficient Speculative Decoders").

    Of the places of each depth in a batch, ceil(share * n) stay: those with the largest gap KL(p || q) - KL(p || r) between
    the drafter's law q and the reference's r against the target's p. A place that neither can learn has a small gap and is
    left to the target. The paper selects among the tokens of a batch of one-step predictions; here each depth selects its own,
    since deeper predictions are worse throughout.

    reference: a frozen drafter of the same kind for the same target, in the paper one that was distilled on all tokens.
    share: 0.4 in the paper's experiments; 1 is the objective itself.
    """

    reference: nn.Module
    share: float = 0.4

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: expected above 0 and at most 1, got {self.share}")

    def __call__(
        self, drafter: nn.Module, parts: object, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss and notes as of Objective; hits are those of the places that stay.

        Raises ValueError for a reference that predicts at other places, which a drafter of another kind may.
        """
        made = predictions(drafter, parts, batch, self.objective.depths)
        with torch.no_grad():
            others = predictions(self.reference, parts, batch, self.objective.depths)
        if [(one.depth, one.count) for one in made] != [(one.depth, one.count) for one in others]:
            raise ValueError(
                f"reference: expected a drafter that predicts where this one does, got {type(self.reference).__name__} "
                f"for {type(drafter).__name__}; train one of the same kind and sizes"
            )
        chosen = [
            mine.at(select_places(mine, other, self.share, batch.ids.device))
            for mine, other in zip(made, others, strict=True)
        ]
        return self.objective.over(chosen, batch.embeds.device)


@torch.no_grad()
def select_places(
    prediction: DepthPredictions, reference: DepthPredictions, share: float, device: torch.device
) -> Tensor:
    """The ceil(share * n) of n places where the drafter is furthest behind the reference, int64."""
    mine, other = (one.losses((forward_kl,), device).values[:, 0] for one in (prediction, reference))
    return (mine - other).topk(math.ceil(share * prediction.count)).indices
