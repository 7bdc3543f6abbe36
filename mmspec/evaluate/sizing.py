"""The size of a drafter that pays: accept length fitted to the logarithms of drafter size and training data.

"Scaling Laws for Speculative Decoding" (Scylla): accept length grows linearly in both logarithms. The fit reads the rows
of finished benches; it describes drafters of one kind on one task and refuses sizes far from the measured sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

_REACH = 4.0  # how far beyond the measured sizes a fit may be read
_DRAWS = 400  # resamples of the bootstrap
_INTERVAL = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class SizedDrafter:
    """A measured drafter."""

    parameters: float  # the number of its weights
    data: float  # the amount of its training: tokens, or any other unit that all drafters share
    accept_length: float  # tokens per target pass

    def __post_init__(self) -> None:
        if min(self.parameters, self.data, self.accept_length) <= 0:
            raise ValueError(f"drafters: expected parameters, data and accept_length above 0, got {self}; leave it out")


@dataclass(frozen=True, slots=True)
class SizingFit:
    """Accept length = base + by_data * ln(data) + by_size * ln(parameters)."""

    base: float
    by_data: float  # the slope by training data; 0 where all drafters have the same
    by_size: float  # the slope by size; 0 where all drafters have the same
    # by name of a coefficient, the 2.5 % and 97.5 % quantiles of the bootstrap
    intervals: Mapping[str, tuple[float, float]]
    sizes: tuple[float, float]  # the smallest and the largest number of parameters measured
    data: tuple[float, float]  # the same of the training data

    def accept_length(self, parameters: float, data: float) -> float:
        """Return the expected accept length, at least 1; a size more than 4 times outside the measured sizes is an
        error."""
        for name, value, (least, most) in (("parameters", parameters, self.sizes), ("data", data, self.data)):
            if not least / _REACH <= value <= most * _REACH:
                raise ValueError(
                    f"{name}: expected {least / _REACH:.3g} to {most * _REACH:.3g}, at most 4 times beyond the "
                    f"measured drafters, got {value:.3g}; measure a drafter of that size"
                )
        return max(self.base + self.by_data * log(data) + self.by_size * log(parameters), 1.0)

    def best_size(
        self, sizes: Iterable[float], data: float, *, target: float, draft: Callable[[float], float], length: int
    ) -> tuple[float, float]:
        """Return the number of parameters with the most tokens per second, and these tokens per second. A pass that
        verifies a draft takes `target` seconds, and each of the `length` drafting steps of a round `draft(parameters)`
        seconds."""

        def rate(size: float) -> float:
            return self.accept_length(size, data) / (target + length * draft(size))

        best = max(sizes, key=rate)
        return best, rate(best)


def fit_sizes(drafters: Sequence[SizedDrafter], seed: int = 0) -> SizingFit:
    """Fit the law by least squares to at least 4 measured drafters, of 2 different sizes or amounts of data."""
    if len(drafters) < 4:
        raise ValueError(f"drafters: expected at least 4 measured drafters, got {len(drafters)}; measure more sizes")
    rows = torch.tensor(
        [(1.0, log(drafter.data), log(drafter.parameters)) for drafter in drafters], dtype=torch.float64
    )
    lengths = torch.tensor([drafter.accept_length for drafter in drafters], dtype=torch.float64)
    varies = rows.amax(0) - rows.amin(0) > 1e-6
    if not varies.any():
        raise ValueError("drafters: expected several sizes or amounts of data, got one of each; measure more sizes")
    varies[0] = True
    fit, generator, draws = _solved(rows, lengths, varies), torch.Generator().manual_seed(seed), []
    while len(draws) < _DRAWS:
        pick = torch.randint(len(drafters), (len(drafters),), generator=generator)
        if torch.linalg.matrix_rank(rows[pick][:, varies]) == int(varies.sum()):
            draws.append(_solved(rows[pick], lengths[pick], varies))
    low, high = torch.stack(draws).quantile(torch.tensor(_INTERVAL, dtype=torch.float64), 0).tolist()
    names = ("base", "by_data", "by_size")
    sizes, data = ([getattr(drafter, name) for drafter in drafters] for name in ("parameters", "data"))
    return SizingFit(
        *fit.tolist(),
        {name: (low[n], high[n]) for n, name in enumerate(names)},
        (min(sizes), max(sizes)),
        (min(data), max(data)),
    )


def _solved(rows: Tensor, lengths: Tensor, varies: Tensor) -> Tensor:
    """Return the coefficients, float64 [3], with 0 for columns that do not vary."""
    coefficients = rows.new_zeros(3)
    coefficients[varies] = torch.linalg.lstsq(rows[:, varies], lengths[:, None], driver="gelsd").solution[:, 0]
    return coefficients


def drafters_of_bench(bench: Mapping[str, Any], data: Mapping[str, float] | None = None) -> list[SizedDrafter]:
    """Return the trained drafters of a finished bench, a JSON object with `rows`; rows without parameters or accept
    length are skipped. `data` is the training data by the method of a row; without it, the seconds of its training
    count."""
    drafters = []
    for row in bench["rows"]:
        amount = row.get("training_seconds") if data is None else data.get(row["method"])
        if row.get("parameters") and row.get("accept_length") and amount:
            drafters.append(SizedDrafter(row["parameters"], amount, row["accept_length"]))
    return drafters


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """The seconds of a round, fitted to measured drafters."""

    target: float  # the median seconds of a round without its draft
    base: float  # the seconds of a draft that do not depend on the drafter's size
    per_parameter: float  # the seconds of a draft for each parameter

    def draft(self, parameters: float) -> float:
        return self.base + self.per_parameter * parameters


def round_times(rows: Sequence[Mapping[str, Any]]) -> RoundTimes:
    """Fit the seconds of rounds by least squares; a slope below 0 counts as 0. At least 2 rows need parameters,
    seconds, target passes and the share of drafts."""
    timed = [row for row in rows if row.get("parameters") and row.get("target_passes") and row.get("draft_share")]
    if len(timed) < 2:
        raise ValueError(f"rows: expected at least 2 timed drafters, got {len(timed)}; bench more drafters")
    rounds = [row["seconds"] / row["target_passes"] for row in timed]
    drafts = torch.tensor([time * row["draft_share"] for time, row in zip(rounds, timed, strict=True)]).double()
    sizes = torch.tensor([float(row["parameters"]) for row in timed]).double()
    spread = sizes - sizes.mean()
    slope = float((spread @ drafts) / (spread @ spread).clamp(min=1e-300))
    slope = max(slope, 0.0) if bool((spread != 0).any()) else 0.0
    others = torch.tensor([time * (1 - row["draft_share"]) for time, row in zip(rounds, timed, strict=True)])
    return RoundTimes(float(others.median()), max(float(drafts.mean() - slope * sizes.mean()), 0.0), slope)


def rows_alike(benches: Iterable[Mapping[str, Any]], **fields: Any) -> list[Mapping[str, Any]]:
    """Return the rows of finished benches whose fields have these values; a row without a field counts."""
    rows = [row for bench in benches for row in bench["rows"]]
    return [row for row in rows if all(row.get(name, value) == value for name, value in fields.items())]
