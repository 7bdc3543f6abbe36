"""Routers: rules that decide which drafted blocks stand, by score, by budget, or mixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.core.rules.base import Rule, Weights
from mmspec.io.validation import number, whole
from mmspec.methods import method


@dataclass(slots=True)
class BlockEvidence(Evidence):
    """reward: float32 [B, N], the block's score made of its frames'; NaN where nothing was scored, which no comparison lets
    stand.   anchor: float32 [B], the same of the target's block that began the prompt, NaN where nobody asked for it.
    run: int64 [B], drafts that stand in a row right before this block.
    features: float32 [B, K], see `FEATURES`, NaN where nobody asked.
    """

    anchor: Tensor | None = None
    run: Tensor | None = None
    features: Tensor | None = None


@dataclass(frozen=True, slots=True)
class BlockPosition:
    """The place of a row before a block is drafted. block: its number, of `blocks`.   target_blocks: the target's before it.
    run: drafts that stand in a row right before it.   uniform: in [0, 1), of this row and block."""

    row: int
    block: int
    blocks: int
    target_blocks: int
    run: int
    uniform: float


@dataclass(frozen=True, slots=True)
class ScoringNeeds:
    """The scores that a router reads. Without a reward nothing is scored for it, and without pixels nothing is decoded.

    reward: whether drafts are scored.   target_blocks: which blocks of the target are scored too.
    features: whether the features of drafts are computed.
    """

    reward: bool = True
    target_blocks: Literal["none", "anchors", "all"] = "none"
    features: bool = False


class Router(Rule):
    """A rule over drafted blocks: those that stand are kept as they are, the target redraws the others. Relaxed, as what
    stands is the drafter's: "Speculative Decoding for Autoregressive Video Generation" has no guarantee of law, and neither
    has any router. Setting that gives up nothing: one under which no draft can stand, whose videos are the target's, bit
    for bit.   needs: the scores that it reads.
    """

    exact = False
    proven_for = frozenset({("none", "none")})
    reads = "reward"
    needs = ScoringNeeds()

    def describe(self, exact: bool, setting: str, name: str) -> None:
        """Sets `exact` and `name`: under the `setting` that is exact the target draws alone."""
        self.exact, self.name = exact, f"target alone ({setting})" if exact else f"{name} (relaxed)"

    def check_rows(self, rows: int, blocks: int) -> None:
        """Raises ValueError for a request that it has no settings for."""

    def drafts(self, position: BlockPosition) -> bool:
        """Whether the block is drafted at all; what is not is the target's. Called once a row and block, in order."""
        return True

    def accept(self, evidence: BlockEvidence) -> Tensor:
        """float [B], the probability that the draft stands: 0 or 1 unless the router is random."""
        raise TypeError(f"{type(self).__name__} must define accept")

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        threshold = torch.zeros(draft.value.shape, dtype=torch.float64, device=draft.value.device)
        if draft.tree.nodes > 1:
            threshold[:, 1] = self.accept(evidence).double()
        return Weights(threshold, "descend")

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        verdict.kind, verdict.redo = "regenerate", verdict.node == 0
        return verdict


class TargetAlone(Router):
    """Every block is the target's own: plain decoding through the same loop. Exact."""

    name, exact, needs = "exact", True, ScoringNeeds(reward=False)

    def drafts(self, position: BlockPosition) -> bool:
        return False

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return torch.zeros_like(evidence.run, dtype=torch.float64)


@method(
    "threshold", domain="video", kind="router", title="SDVG", exact=False, order=0,
    about="drafts whose score is high enough are kept",
    paper="Speculative Decoding for Autoregressive Video Generation",
)  # fmt: skip
class Threshold(Router):
    """A draft stands where its score is `least` or more: "Speculative Decoding for Autoregressive Video Generation" (SDVG),
    where the score is the least of its frames' and tau lies in -1.0..-0.7 of ImageReward. Relaxed.

    Args:
        least: The score that a draft needs, in the unit of the reward; infinity is the target alone.

    Raises:
        ValueError: It is NaN.
    """

    def __init__(self, least: float):
        self.least = number("threshold", least, infinite=True)
        self.describe(self.least == math.inf, "threshold inf", f"reward >= {self.least:g}")

    @classmethod
    def accepting(cls, share: float, scores: Sequence[float]) -> Self:
        """The threshold that lets such a share of `scores` stand, those of drafts of other videos.

        0 is the target alone, 1 lets everything stand. Raises ValueError for a share outside 0..1 and for no finite scores.
        """
        return cls(threshold_for_share(share, scores))

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return evidence.reward[:, 1] >= self.least


@method(
    "relative", domain="video", kind="router", title="relative to the first block", exact=False, order=1,
    about="drafts are kept whose score is near that of the first block",
)  # fmt: skip
class Relative(Router):
    """A draft stands where its score is no more than `margin` below that of the target's block that began the prompt. Relaxed.

    Rewards tell more of prompts than of pictures, so that one number for all videos redraws those that are hard to please
    from end to end; the forced first block knows what this one can reach. Its frames are fewer where a video's first latent
    stands for one: the least of few is higher, so take the mean there, or a wider margin.

    Args:
        margin: How far below the first block's score a draft's may be; minus infinity is the target alone.

    Raises:
        ValueError: It is NaN.
    """

    needs = ScoringNeeds(target_blocks="anchors")

    def __init__(self, margin: float):
        self.margin = number("margin", margin, infinite=True)
        self.describe(self.margin == -math.inf, "margin -inf", f"reward >= first block - {self.margin:g}")

    @classmethod
    def accepting(cls, share: float, scores: Sequence[float], anchors: Sequence[float]) -> Self:
        """The margin that lets such a share of `scores` stand, each beside the score of its own video's first block."""
        return cls(-threshold_for_share(share, [one - other for one, other in zip(scores, anchors, strict=True)]))

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return evidence.reward[:, 1] >= evidence.anchor - self.margin


def threshold_for_share(share: float, scores: Sequence[float]) -> float:
    """The largest number that a `share` of the scores is not below; infinity for a share of none, minus that for all."""
    values = torch.as_tensor(scores, dtype=torch.float64)
    if not 0 <= share <= 1:
        raise ValueError(f"share: expected 0 to 1, got {share}; it is the part of the drafts that stand")
    if values.numel() == 0 or not values.isfinite().all():
        raise ValueError(f"scores: expected finite numbers to calibrate by, got {values.numel()} with NaN or Inf or none; "
                         "score drafts of some videos first")  # fmt: skip
    if share in (0, 1):
        return math.inf if share == 0 else -math.inf
    ranked = values.flatten().sort(descending=True).values
    return ranked[max(1, round(share * len(ranked))) - 1].item()


class Hybrid(Router):
    """At most `run` drafts stand in a row, as with evenly placed target blocks, and `veto` may redraw earlier; a block it
    redraws begins a new run, so that the budget goes where scores are low. Relaxed; a run of 0 is the target alone.

    Raises ValueError for a run below 0.
    """

    def __init__(self, run: int, veto: Router):
        if whole("run", run) < 0:
            raise ValueError(f"run: expected 0 or more drafts in a row, got {run}; 0 is the target alone")
        self.run, self.veto, self.needs = run, veto, veto.needs
        self.exact = run == 0 or veto.exact
        self.name = "target alone (run 0)" if self.exact else f"at most {run} drafts, {veto.name}"

    def check_rows(self, rows: int, blocks: int) -> None:
        self.veto.check_rows(rows, blocks)

    def drafts(self, position: BlockPosition) -> bool:
        return position.run < self.run and self.veto.drafts(position)

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return self.veto.accept(evidence)


@method(
    "hybrid", domain="video", kind="router", title="runs and a threshold", exact=False, order=4,
    about="at most so many drafts in a row, and fewer where scores are low",
)  # fmt: skip
def hybrid(run: int, least: float) -> Hybrid:
    """`Hybrid` with a threshold.

    Args:
        run: The most drafts in a row.
        least: The score that a draft needs.
    """
    return Hybrid(run, Threshold(least))


@method(
    "explore", domain="video", kind="router", title="tried out", exact=False, order=5,
    about="drafts are kept at random, and all are scored",
)  # fmt: skip
class Explore(Router):
    """A draft stands with probability `rate`, whatever its score; both it and the block that takes its place are scored, which
    gives pairs to train `Learned` on along videos that drafts have a part in. At a rate that another router accepts at,
    SDVG's own random baseline. Relaxed.

    Args:
        rate: The probability that a draft is kept; 0 is the target alone.

    Raises:
        ValueError: It lies outside 0 to 1.
    """

    needs = ScoringNeeds(target_blocks="all", features=True)

    def __init__(self, rate: float):
        self.rate = number("rate", rate, 0, 1)
        self.describe(self.rate == 0, "rate 0", f"explore {rate:g}")

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return torch.full_like(evidence.run, self.rate, dtype=torch.float64)
