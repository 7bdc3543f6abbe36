"""A learned router: features of a draft, the predicted advantage of the target, and its training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mmspec.io.pretrained import Pretrained
from mmspec.io.validation import Size, check_fields, number
from mmspec.methods import method
from mmspec.video.decoding.output import VideoStats
from mmspec.video.rewards.scores import Reduction, reduced
from mmspec.video.routing.routers import BlockEvidence, Router, ScoringNeeds

FEATURES = (
    "reward_min", "reward_mean", "reward_spread", "reward_trend", "below_anchor_min", "below_anchor_mean", "progress", "run",
    "latent_jump", "latent_motion", "pixel_jump", "pixel_motion",
)  # fmt: skip

TensorPair = tuple[Tensor, Tensor]


def draft_features(
    scores: Tensor, anchor: Tensor, latents: TensorPair, frames: TensorPair, progress: float, run: int
) -> Tensor:
    """Return the features of a draft, float32 [len(FEATURES)] on the host, from frame scores float [F] of the draft and
    of the block that began the prompt, and latents [1, C, F, h, w] and frames uint8 [N, 3, H, W] of the previous
    committed block and the draft. A jump is the mean change across the boundary of blocks; motion is that between
    frames of the draft. `progress` is the committed share of the video, and `run` the accepted drafts before this
    draft."""
    before, own = (block[0].transpose(0, 1).float() for block in latents)  # [F, C, h, w]
    shown, seen = (block.float() / 255 for block in frames)
    least, mean = reduced(scores), reduced(scores, "mean")
    parts = [
        least,
        mean,
        scores.std(correction=0),
        scores[-1] - scores[0],
        reduced(anchor) - least,
        reduced(anchor, "mean") - mean,
        progress,
        run,
        _jump(before, own),
        _motion(own),
        _jump(shown, seen),
        _motion(seen),
    ]
    return torch.tensor([float(part) for part in parts])


def _jump(before: Tensor, after: Tensor) -> Tensor:
    return (after[0] - before[-1]).abs().mean()


def _motion(block: Tensor) -> Tensor | float:
    return block.diff(dim=0).abs().mean() if len(block) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class AdvantageConfig:
    features: tuple[str, ...] = FEATURES  # in the order in which the model reads them
    hidden: Size = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        check_fields(self)
        if self.features != FEATURES:
            raise ValueError(
                f"features: expected {', '.join(FEATURES)}, got {', '.join(self.features)}; train the model anew"
            )


class Advantage(Pretrained):
    """Predicts from the features of a draft by how much the target's block would score above it."""

    kind = "block-advantage"
    config_class = AdvantageConfig
    kinds: ClassVar[dict[str, type[Pretrained]]] = {}

    def __init__(self, config: AdvantageConfig):
        super().__init__(config)
        count = len(config.features)
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("std", torch.ones(count))
        self.register_buffer("scale", torch.ones(2))  # spread and mean of the advantage
        self.layers = nn.Sequential(nn.Linear(count, config.hidden), nn.SiLU(), nn.Linear(config.hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Return the advantage, float [N], of features float [N, K] in the order of the config."""
        return self.layers((features - self.mean) / self.std)[..., 0] * self.scale[0] + self.scale[1]


class Learned(Router):
    """Accepts a draft if the predicted advantage of the target is at most `gain`. Relaxed.

    This is the router of Arbitrage for blocks of videos: the advantage is the reward of the target's block minus that of
    the draft. `replayed_rewards` compares it with others at equal numbers of rewritten blocks.

    Args:
        model: The model that predicts the advantage.
        gain: The largest accepted advantage; minus infinity is the target alone, infinity accepts every draft.

    Raises:
        ValueError: The gain is NaN.
    """

    needs = ScoringNeeds(target_blocks="anchors", features=True)

    def __init__(self, model: Advantage, gain: float = 0.0):
        self.model, self.gain = model, number("gain", gain, infinite=True)
        self.describe(self.gain == -math.inf, "gain -inf", f"predicted gain <= {self.gain:g}")

    @torch.no_grad()
    def accept(self, evidence: BlockEvidence) -> Tensor:
        rows = evidence.features
        return self.model(rows.to(self.model.mean.device)).to(rows.device) <= self.gain


@method(
    "learned",
    domain="video",
    kind="router",
    title="learned gain",
    exact=False,
    order=6,
    about="accepts drafts where a small model predicts a small gain from the target",
    paper="Arbitrage",
)
def learned(model: str, gain: float = 0.0) -> Learned:
    """`Learned` with a saved model.

    Args:
        model: The folder of the model that predicts the gain.
        gain: The largest predicted gain of the target at which a draft is accepted.
    """
    return Learned(Advantage.from_pretrained(model), gain)


_FEWEST = 10


def scored_pairs(stats: Sequence[VideoStats], reduction: Reduction = "min") -> tuple[Tensor, Tensor]:
    """Return features float32 [N, K] and gains float32 [N] of all blocks that both models generated.

    A gain is the score of the target's block minus that of the draft. Requests routed by `Explore` leave such blocks
    in their stats.

    Raises:
        ValueError: There are no such blocks.
    """
    records = (record for result in stats for row in result.records for record in row)
    both = [record for record in records if record.features is not None and record.own_scores is not None]
    if not both:
        raise ValueError(
            "stats: expected blocks that both models generated, got none; route some videos by Explore(0.5)"
        )

    def score(scores: list[float]) -> float:
        return reduced(torch.tensor(scores), reduction).item()

    gains = [score(record.own_scores) - score(record.scores) for record in both]
    return torch.tensor([record.features for record in both]), torch.tensor(gains)


@dataclass(frozen=True, slots=True)
class TrainedAdvantage:
    model: Advantage  # of the best step
    correlation: float  # of predicted and true gains on held-out pairs
    loss: float  # held out, as a share of the variance of the gains; 1 for the mean as the prediction


def train_advantage(
    features: Tensor, gains: Tensor, *, hidden: int = 16, steps: int = 400, held_out: float = 0.25, seed: int = 0
) -> TrainedAdvantage:
    """Train a model of gains given features, as from `scored_pairs`; the same data and seed give the same model.

    Args:
        features: float [N, K].
        gains: float [N].
        hidden: The width of the model.
        steps: Steps of AdamW over all pairs at once; the result is the best step on held-out pairs.
        held_out: The share of held-out pairs.
        seed: The seed of the split and of the first weights.

    Raises:
        ValueError: Shapes do not fit, a number is NaN or Inf, or there are fewer than 10 pairs.
    """
    config = AdvantageConfig(hidden=hidden)
    _check_pairs(features, gains, len(config.features))
    drawn = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(gains), generator=drawn)
    late = order[: max(2, round(held_out * len(gains)))]
    early = order[len(late) :]
    model = _model(config, features[early], gains[early], drawn)
    variance = gains[late].var(correction=0).clamp_min(1e-12)
    best, state = torch.inf, None
    learner = torch.optim.AdamW(model.layers.parameters(), lr=1e-2, weight_decay=1e-2)
    for _ in range(steps + 1):
        with torch.no_grad():
            loss = ((model(features[late]) - gains[late]) ** 2).mean() / variance
        if loss < best:
            best, state = loss.item(), {name: value.clone() for name, value in model.state_dict().items()}
        learner.zero_grad()
        # in units of the standard deviation, so that the scale of the reward does not matter
        with torch.enable_grad():
            (((model(features[early]) - gains[early]) / model.scale[0]) ** 2).mean().backward()
        learner.step()
    model.load_state_dict(state)
    model.eval().requires_grad_(False)
    return TrainedAdvantage(model, _correlation(model(features[late]), gains[late]), best)


def _model(config: AdvantageConfig, features: Tensor, gains: Tensor, drawn: torch.Generator) -> Advantage:
    with torch.random.fork_rng(devices=[]):  # the default weights are overwritten
        model = Advantage(config)
    for layer in (model.layers[0], model.layers[2]):
        layer.weight.data = torch.randn(layer.weight.shape, generator=drawn) / layer.in_features**0.5
        layer.bias.data.zero_()
    model.mean.copy_(features.mean(0))
    # a constant feature carries no information and must not be amplified where it varies later
    model.std.copy_(torch.where(features.std(0) > 1e-6, features.std(0), 1.0))
    model.scale.copy_(torch.stack((gains.std().clamp_min(1e-6), gains.mean())))
    return model


def _correlation(predicted: Tensor, true: Tensor) -> float:
    value = torch.corrcoef(torch.stack((predicted, true)))[0, 1].item()
    return value if value == value else 0.0  # NaN where either is constant


def _check_pairs(features: Tensor, gains: Tensor, count: int) -> None:
    if features.dim() != 2 or features.shape[1] != count or gains.shape != features.shape[:1]:
        raise ValueError(
            f"features, gains: expected [N, {count}] and [N], got {tuple(features.shape)} and "
            f"{tuple(gains.shape)}; use what scored_pairs gives"
        )
    if len(gains) < _FEWEST:
        raise ValueError(f"gains: expected {_FEWEST} pairs or more, got {len(gains)}; route more videos by Explore")
    if not (features.isfinite().all() and gains.isfinite().all()):
        raise ValueError("features, gains: expected finite numbers, got NaN or Inf; drop the blocks they belong to")
