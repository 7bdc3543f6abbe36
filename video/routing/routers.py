"""Routers that accept drafted blocks by score, at random or by a mixed rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules.base import Rule, Weights
from mmspec.io.validation import number, whole
from mmspec.methods import method


@dataclass(slots=True)
class BlockEvidence(Evidence):
    """`reward` are block scores [B, N], float32; NaN without a score, which fails every comparison."""

    anchor: Tensor | None = None  # float32 [B], score of the target's block that began the prompt; NaN without
    run: Tensor | None = None  # int64 [B], consecutive accepted drafts before
    features: Tensor | None = None  # float32 [B, K], see `FEATURES`; NaN without


@dataclass(frozen=True, slots=True)
class BlockPosition:
    row: int
    block: int
    blocks: int
    target_blocks: int  # earlier blocks that the target generated
    run: int  # consecutive accepted drafts right before this block
    uniform: float  # in [0, 1), of this row and block


@dataclass(frozen=True, slots=True)
class ScoringNeeds:
    """The scores that a router reads. Without a reward no block is scored, and without pixels none is decoded."""

    reward: bool = True
    target_blocks: Literal["none", "anchors", "all"] = "none"  # scored too
    features: bool = False


class Router(Rule):
    """A rule over drafted blocks: accepted blocks remain as drafted, and the target regenerates the others
    ("Speculative Decoding for Autoregressive Video Generation"). Relaxed, since accepted blocks follow the drafter's
    distribution. Under its exact setting a router accepts no draft, and the videos are the target's, bit for bit."""

    exact = False
    proven_for = frozenset({("none", "none")})
    reads = "reward"
    needs = ScoringNeeds()

    def describe(self, exact: bool, setting: str, name: str) -> None:
        """Set `exact` and `name`; under the exact `setting` the target alone generates blocks."""
        self.exact, self.name = exact, f"target alone ({setting})" if exact else f"{name} (relaxed)"

    def check_rows(self, rows: int, blocks: int) -> None:
        """Check that the settings fit the rows and blocks of a request."""

    def drafts(self, position: BlockPosition) -> bool:
        """Return whether the block is drafted; the target generates the others. Called once per row and block."""
        return True

    def accept(self, evidence: BlockEvidence) -> Tensor:
        """Return the acceptance probability of each draft, float [B]: 0 or 1 unless the router is random."""
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
    """The target generates every block: plain decoding through the same loop. Exact."""

    name, exact, needs = "exact", True, ScoringNeeds(reward=False)

    def drafts(self, position: BlockPosition) -> bool:
        return False

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return torch.zeros_like(evidence.run, dtype=torch.float64)


@method(
    "threshold",
    domain="video",
    kind="router",
    title="SDVG",
    exact=False,
    order=0,
    about="accepts drafts whose score is high enough",
    paper="Speculative Decoding for Autoregressive Video Generation",
)
class Threshold(Router):
    """Accepts a draft whose score is at least `least`. Relaxed.

    Paper: "Speculative Decoding for Autoregressive Video Generation" (SDVG). There a block's score is the minimum of
    its frames' scores, and the threshold tau lies in -1.0..-0.7 of ImageReward.

    Args:
        least: The score that a draft needs, in the unit of the reward; infinity is the target alone.

    Raises:
        ValueError: The score is NaN.
    """

    def __init__(self, least: float):
        self.least = number("threshold", least, infinite=True)
        self.describe(self.least == math.inf, "threshold inf", f"reward >= {self.least:g}")

    @classmethod
    def accepting(cls, share: float, scores: Sequence[float]) -> Self:
        """Return the threshold that accepts this share, 0 (target alone) to 1, of `scores`, of drafts of other videos."""
        return cls(threshold_for_share(share, scores))

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return evidence.reward[:, 1] >= self.least


@method(
    "relative",
    domain="video",
    kind="router",
    title="relative to the first block",
    exact=False,
    order=1,
    about="accepts drafts whose score is near that of the first block",
)
class Relative(Router):
    """Accepts a draft whose score is at most `margin` below that of the target's block that began the prompt. Relaxed.

    Rewards vary more between prompts than between videos of the same prompt, so a fixed threshold regenerates all
    blocks of difficult prompts. The first block shows the scores that a prompt allows. Where it has fewer frames, its
    minimum is biased upwards: use the mean or a wider margin.

    Args:
        margin: How far a draft's score may lie below that of the first block; minus infinity is the target alone.

    Raises:
        ValueError: The margin is NaN.
    """

    needs = ScoringNeeds(target_blocks="anchors")

    def __init__(self, margin: float):
        self.margin = number("margin", margin, infinite=True)
        self.describe(self.margin == -math.inf, "margin -inf", f"reward >= first block - {self.margin:g}")

    @classmethod
    def accepting(cls, share: float, scores: Sequence[float], anchors: Sequence[float]) -> Self:
        """Return the margin that accepts this share of `scores`, each with the score of its own video's first block."""
        return cls(-threshold_for_share(share, [score - anchor for score, anchor in zip(scores, anchors, strict=True)]))

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return evidence.reward[:, 1] >= evidence.anchor - self.margin


def threshold_for_share(share: float, scores: Sequence[float]) -> float:
    """Return the largest number such that a `share` of the scores is not below it; infinity for 0, -infinity for 1."""
    values = torch.as_tensor(scores, dtype=torch.float64)
    if not 0 <= share <= 1:
        raise ValueError(f"share: expected 0 to 1, got {share}; it is the share of accepted drafts")
    if values.numel() == 0 or not values.isfinite().all():
        raise ValueError(
            f"scores: expected finite numbers, got {int(values.isfinite().sum())} of {values.numel()} finite; "
            "score drafts of some videos first"
        )
    if share in (0, 1):
        return math.inf if share == 0 else -math.inf
    ranked = values.flatten().sort(descending=True).values
    return ranked[max(1, round(share * len(ranked))) - 1].item()


class Hybrid(Router):
    """Accepts at most `run` drafts in a row; `veto` may reject earlier, and a rejection begins a new run. Relaxed.

    So the budget goes to blocks with low scores.

    Args:
        run: The most consecutive drafts; 0 is the target alone.
        veto: The router that may reject earlier.

    Raises:
        ValueError: The run is below 0.
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
    "hybrid",
    domain="video",
    kind="router",
    title="runs and a threshold",
    exact=False,
    order=4,
    about="accepts up to a number of drafts in a row, and fewer where scores are low",
)
def hybrid(run: int, least: float) -> Hybrid:
    """`Hybrid` with a threshold.

    Args:
        run: The most drafts in a row.
        least: The score that a draft needs.
    """
    return Hybrid(run, Threshold(least))


@method(
    "explore",
    domain="video",
    kind="router",
    title="tried out",
    exact=False,
    order=5,
    about="accepts drafts at random, and scores all blocks",
)
class Explore(Router):
    """Accepts a draft with probability `rate`, whatever its score, and scores drafts and regenerated blocks. Relaxed.

    The scores are training pairs for `Learned`, from videos with accepted drafts. At the acceptance rate of another
    router this is the random baseline of SDVG.

    Args:
        rate: The probability that a draft is accepted; 0 is the target alone.

    Raises:
        ValueError: The rate lies outside 0 to 1.
    """

    needs = ScoringNeeds(target_blocks="all", features=True)

    def __init__(self, rate: float):
        self.rate = number("rate", rate, 0, 1)
        self.describe(self.rate == 0, "rate 0", f"explore {rate:g}")

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return torch.full_like(evidence.run, self.rate, dtype=torch.float64)
