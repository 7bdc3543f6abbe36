"""How sure a figure is: the same figure of resampled requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 1000
LEVELS = (5, 95)  # percent, a 90 % interval


def interval(
    groups: Sequence[Sequence], figure: Callable[[np.ndarray], float], resamples: int = RESAMPLES, seed: int = 0
) -> list[float] | None:
    """The bootstrap's 90 % interval of `figure` of all values; None of fewer than two groups.

    groups: values that belong together, such as those of one prompt under several seeds, each a number or a row of numbers
    that stay together; groups are drawn with repeats and kept whole.
    figure: of the values of resampled groups, [N] or [N, K]; resamples of which it is NaN are left out.
    """
    if len(groups) < 2:
        return None
    values, drawn = [np.asarray(one, dtype=float) for one in groups], np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        picked = drawn.integers(len(values), size=len(values))
        found.append(figure(np.concatenate([values[one] for one in picked])))
    known = [one for one in found if one == one]
    return [round(float(end), 4) for end in np.percentile(known, LEVELS)] if known else None
