"""The learned router's training: pairs of scores from films that were tried out, and a small regression on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.video.decoding.stats import VideoStats
from mmspec.video.rewards.scores import Reduction, reduced
from mmspec.video.routing.learned import Advantage, AdvantageConfig

_FEWEST = 10


def scored_pairs(stats: Sequence[VideoStats], reduction: Reduction = "min") -> tuple[Tensor, Tensor]:
    """Features float32 [N, K] of drafts, and what the target's blocks scored above them, float32 [N]: of all blocks that both
    drew, as requests routed by `Explore` leave them in their stats.

    Raises ValueError where there are none.
    """
    both = [
        record
        for one in stats
        for row in one.records
        for record in row
        if record.features is not None and record.own_scores is not None
    ]
    if not both:
        raise ValueError("stats: expected blocks that both models drew, got none; route some videos by Explore(0.5)")
    gains = [_score(record.own_scores, reduction) - _score(record.scores, reduction) for record in both]
    return torch.tensor([record.features for record in both]), torch.tensor(gains)


def _score(scores: list[float], reduction: Reduction) -> float:
    return reduced(torch.tensor(scores), reduction).item()


@dataclass(frozen=True, slots=True)
class Trained:
    """model: of the best step.   correlation: of predicted and true gains on the pairs that were held out.
    loss: there, as a share of the gains' variance; 1 is what predicting their mean gives."""

    model: Advantage
    correlation: float
    loss: float


def train_advantage(
    features: Tensor, gains: Tensor, *, hidden: int = 16, steps: int = 400, held_out: float = 0.25, seed: int = 0
) -> Trained:
    """A model of `gains` float [N] given `features` float [N, K], as `scored_pairs` gives them. The same data and seed give
    the same model.

    steps: of AdamW over all pairs at once; the model is the one that was best on the share `held_out`.
    Raises ValueError for other shapes, NaN or Inf, and fewer than 10 pairs.
    """
    config = AdvantageConfig(hidden=hidden)
    _check(features, gains, len(config.features))
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
        # in units of the spread, so that rewards of any scale are learned alike
        with torch.enable_grad():
            (((model(features[early]) - gains[early]) / model.scale[0]) ** 2).mean().backward()
        learner.step()
    model.load_state_dict(state)
    model.eval().requires_grad_(False)
    return Trained(model, _correlation(model(features[late]), gains[late]), best)


def _model(config: AdvantageConfig, features: Tensor, gains: Tensor, drawn: torch.Generator) -> Advantage:
    with torch.random.fork_rng(devices=[]):  # what modules start with is drawn, and then thrown away
        model = Advantage(config)
    for layer in (model.layers[0], model.layers[2]):
        layer.weight.data = torch.randn(layer.weight.shape, generator=drawn) / layer.in_features**0.5
        layer.bias.data.zero_()
    model.mean.copy_(features.mean(0))
    # a feature that never varied says nothing, and must not be blown up where it does later
    model.std.copy_(torch.where(features.std(0) > 1e-6, features.std(0), 1.0))
    model.scale.copy_(torch.stack((gains.std().clamp_min(1e-6), gains.mean())))
    return model


def _correlation(one: Tensor, other: Tensor) -> float:
    value = torch.corrcoef(torch.stack((one, other)))[0, 1].item()
    return value if value == value else 0.0  # where one of them never varies


def _check(features: Tensor, gains: Tensor, count: int) -> None:
    if features.dim() != 2 or features.shape[1] != count or gains.shape != features.shape[:1]:
        raise ValueError(f"features, gains: expected [N, {count}] and [N], got {tuple(features.shape)} and "
                         f"{tuple(gains.shape)}; use what scored_pairs gives")  # fmt: skip
    if len(gains) < _FEWEST:
        raise ValueError(f"gains: expected {_FEWEST} pairs or more, got {len(gains)}; route more videos by Explore")
    if not (features.isfinite().all() and gains.isfinite().all()):
        raise ValueError("features, gains: expected finite numbers, got NaN or Inf; drop the blocks they belong to")
