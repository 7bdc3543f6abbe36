from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from mmspec.core.length.controls import outcomes
from mmspec.core.round.draft import Draft, Verdict
from mmspec.io.validation import Count, Range, Share, Size, check_fields
from mmspec.methods import method

_RECENT, _SETTLED = 0.5, 0.9  # the weights of the past in the share of accepted values and in the threshold
_FIRST = 8  # verified values before a fitted scale is used


@method(
    "entropy",
    domain=("vlm", "image"),
    kind="controller",
    title="AdaEDL",
    exact=True,
    order=3,
    about="a draft ends where the entropy of the next distribution is high, at a threshold that adapts",
    paper="AdaEDL: Early Draft Stopping for Speculative Decoding of Large Language Models via an Entropy-based Lower "
    "Bound on Token Acceptance Probability",
)
@dataclass(frozen=True, slots=True)
class EntropyStop:
    """Ends a row's draft where 1 - sqrt(scale * H) < threshold, with H the entropy of the next distribution in nats.

    Exact: the entropy is read before a value is drawn. The threshold of a row rises by `step` after rounds whose
    smoothed share of accepted values is below `goal`, falls after rounds above it, and is smoothed itself.

    Args:
        threshold: The bound on the acceptance below which a draft ends, at the start of a request.
        goal: The share of accepted values at which the threshold stays.
        step: The change of the threshold after a round, before smoothing; 0 for a fixed threshold.
        scale: The weight of the entropy, 0.2 for text; none fits it to the first values of each row, for images.
        longest: The most values of a draft.
        shortest: The fewest values of a draft; with 0 a round may draft nothing.
    """

    threshold: Share = 0.4
    goal: Share = 0.9
    step: Share = 0.01
    scale: Annotated[float, Range(above=0, hint="0.2 is usual for text")] | None = 0.2
    longest: Size = 8
    shortest: Count = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.shortest > self.longest:
            raise ValueError(f"shortest: expected 0 <= shortest <= longest, got {self.shortest} and {self.longest}")

    def begin(self) -> EntropyGrowth:
        """Return the decisions for a draft outside a request, whose threshold does not adapt."""
        scale = torch.tensor(0.0 if self.scale is None else self.scale)
        return EntropyGrowth(self, torch.tensor(self.threshold), scale)

    def for_request(self, target: Any) -> AdaptiveEntropyStop:
        return AdaptiveEntropyStop(self, target.batch, target.device)


class AdaptiveEntropyStop:
    """A request's thresholds, `share` of accepted values and `scale`, float32 [B]; scale 0 is not fitted yet and ends
    no draft."""

    def __init__(self, control: EntropyStop, batch: int, device: torch.device | str):
        self.control, self.longest = control, control.longest
        self.threshold = torch.full((batch,), float(control.threshold), device=device)
        self.share = torch.full_like(self.threshold, control.goal)
        self.scale = torch.full_like(self.threshold, control.scale or 0.0)
        self.growth: EntropyGrowth | None = None
        self._hits, self._tests, self._entropy = (torch.zeros_like(self.threshold) for _ in range(3))

    def begin(self) -> EntropyGrowth:
        self.growth = EntropyGrowth(self.control, self.threshold, self.scale)
        return self.growth

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        accepted, drawn = outcomes(draft, verdict)
        drafted, control = drawn > 0, self.control
        share = self.share.lerp(accepted / drawn.clamp_min(1), 1 - _RECENT)
        self.share = share.where(drafted, self.share)
        wanted = self.threshold + control.step * (control.goal - self.share).sign()
        moved = self.threshold.lerp(wanted, 1 - _SETTLED).clamp(0, 1)
        self.threshold = moved.where(drafted, self.threshold)
        if control.scale is None and self.growth is not None and self.growth.entropies:
            self._fit(accepted, drawn, torch.stack(self.growth.entropies, 1))

    def _fit(self, accepted: Tensor, drawn: Tensor, entropy: Tensor) -> None:
        """Set the scale so that the bound holds with equality on average: scale * H = (1 - accepted share)^2."""
        tested = drawn.minimum(accepted + 1)
        self._hits, self._tests = self._hits + accepted, self._tests + tested
        read = torch.arange(entropy.shape[1], device=entropy.device) < tested[:, None]
        self._entropy = self._entropy + entropy.where(read, 0.0).sum(-1)
        tests = self._tests.clamp_min(1)
        fitted = (1 - self._hits / tests) ** 2 / (self._entropy / tests).clamp_min(1e-6)
        self.scale = fitted.where(self._tests >= _FIRST, 0.0)


class EntropyGrowth:
    """The decisions of a draft; `entropies` holds a float32 [B] for each value."""

    def __init__(self, control: EntropyStop, threshold: Tensor, scale: Tensor):
        self.control, self.threshold, self.scale = control, threshold, scale
        self.entropies: list[Tensor] = []

    def measure(self, law: Tensor) -> Tensor:
        """The bound on the acceptance of a value that will be drawn from `law` [B, V], float32 [B]."""
        self.entropies.append(torch.special.entr(law).sum(-1))
        return 1 - (self.scale.to(law.device) * self.entropies[-1]).sqrt()

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        if step >= self.control.longest:
            return torch.zeros_like(confidence, dtype=torch.bool)
        return (confidence >= self.threshold.to(confidence.device)) | (step < self.control.shortest)
