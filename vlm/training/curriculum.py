"""Which of two streams of examples, texts or pictures, a training step draws from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stream = Literal["pictures", "texts"]


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Text first, then more and more pictures, then pictures alone.

    The share r of picture steps is 0 up to `texts_until` of the training, rises by equal stairs, one an epoch, and is 1 from
    the last epoch before `ramp_until` on. The defaults are those of the public code of "Speculative Decoding Reimagined for
    Multimodal Large Language Models" (MSD): of 40 epochs, r = 0 in 1 to 20, (e - 20) / 20 in epoch e from 21, 1 in the last.
    That code draws lots for every example; here whole steps are dealt so that every epoch has its share to within one step.
    The two stages of ViSpec are a curriculum with `ramp_until` equal to `texts_until`.

    texts_until, ramp_until: shares of training.   epochs: stairs in the whole training.
    """

    texts_until: float = 0.5
    ramp_until: float = 1.0
    epochs: int = 40

    def __post_init__(self) -> None:
        if not 0 <= self.texts_until <= self.ramp_until <= 1 or self.epochs < 1:
            raise ValueError(
                f"curriculum: expected 0 <= texts_until <= ramp_until <= 1 and epochs of at least 1, got "
                f"{self.texts_until}, {self.ramp_until} and {self.epochs}; change them"
            )

    def share(self, step: int, steps: int) -> float:
        """Share of picture steps in the epoch of `step` (from 0) of `steps`."""
        return self._share(step * self.epochs // steps)

    def stream(self, step: int, steps: int) -> Stream:
        """Which stream step `step` of `steps` draws from; a pure function of both, so that a resumed run goes on exactly."""
        # a step shows pictures where the sum of shares passes a whole number
        return "pictures" if self._dealt(step + 1, steps) > self._dealt(step, steps) else "texts"

    def _share(self, epoch: int) -> float:
        done = (epoch + 1) / self.epochs
        if done <= self.texts_until + 1e-9:
            return 0.0
        width = self.ramp_until - self.texts_until
        return 1.0 if done >= self.ramp_until - 1e-9 else (done - self.texts_until) / width

    def _dealt(self, step: int, steps: int) -> int:
        """Picture steps among the first `step`."""
        total = 0.0
        for epoch in range(self.epochs):
            first, after = (-(-number * steps // self.epochs) for number in (epoch, epoch + 1))
            if first >= step:
                break
            total += (min(after, step) - first) * self._share(epoch)
        return int(total + 1e-6)
