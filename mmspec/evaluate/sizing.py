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
    """A measured drafter.

    Attributes:
        parameters: The number of its weights.
        data: The amount of its training: tokens, or any other unit that all drafters share.
        accept_length: Tokens per target pass.
    """

    parameters: float
    data: float
    accept_length: float

    def __post_init__(self) -> None:
        if min(self.parameters, self.data, self.accept_length) <= 0:
            raise ValueError(f"drafters: expected parameters, data and accept_length above 0, got {self}; leave it out")


@dataclass(frozen=True, slots=True)
class SizingFit:
    """accept length = base + by_data * ln(data) + by_size * ln(parameters).

    Attributes:
        base: The constant.
        by_data: The slope by training data; 0 where all drafters have the same.
        by_size: The slope by size; 0 where all drafters have the same.
        intervals: By name of a coefficient, the 2.5 % and 97.5 % quantiles of the bootstrap.
        sizes: The smallest and the largest number of parameters measured.
        data: The same of the training data.
    """

    base: float
    by_data: float
    by_size: float
    intervals: Mapping[str, tuple[float, float]]
    sizes: tuple[float, float]
    data: tuple[float, float]

    def accept_length(self, parameters: float, data: float) -> float:
        """Return the expected accept length of a drafter, at least 1.

        Raises:
            ValueError: A size is more than 4 times outside the measured sizes.
        """
        for name, value, (least, most) in (("parameters", parameters, self.sizes), ("data", data, self.data)):
            if not least / _REACH <= value <= most * _REACH:
                raise ValueError(f"{name}: expected {least / _REACH:.3g} to {most * _REACH:.3g}, at most 4 times beyond the "
                                 f"measured drafters, got {value:.3g}; measure a drafter of that size")  # fmt: skip
        return max(self.base + self.by_data * log(data) + self.by_size * log(parameters), 1.0)

    def best_size(
        self, sizes: Iterable[float], data: float, *, target: float, draft: Callable[[float], float], length: int
    ) -> tuple[float, float]:
        """Return the size with the most tokens per second, and these tokens per second.

        Args:
            sizes: The numbers of parameters to compare.
            data: The training data of all of them.
            target: Seconds of a pass that verifies a draft.
            draft: From a number of parameters to the seconds of a drafting step.
            length: Drafting steps of a round.
        """

        def rate(size: float) -> float:
            return self.accept_length(size, data) / (target + length * draft(size))

        best = max(sizes, key=rate)
        return best, rate(best)


def fit_sizes(drafters: Sequence[SizedDrafter], seed: int = 0) -> SizingFit:
    """Fit the law to measured drafters by least squares.

    Args:
        drafters: At least 4 of them, of 2 different sizes or amounts of data.
        seed: The seed of the bootstrap.

    Raises:
        ValueError: There are too few drafters, or all are alike.
    """
    if len(drafters) < 4:
        raise ValueError(f"drafters: expected at least 4 measured drafters, got {len(drafters)}; measure more sizes")
    rows = torch.tensor([(1.0, log(one.data), log(one.parameters)) for one in drafters], dtype=torch.float64)
    lengths = torch.tensor([one.accept_length for one in drafters], dtype=torch.float64)
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
    sizes, data = ([getattr(one, name) for one in drafters] for name in ("parameters", "data"))
    return SizingFit(
        *fit.tolist(), {name: (low[n], high[n]) for n, name in enumerate(names)},
        (min(sizes), max(sizes)), (min(data), max(data)),
    )  # fmt: skip


def _solved(rows: Tensor, lengths: Tensor, varies: Tensor) -> Tensor:
    """Return the coefficients, float64 [3], with 0 for columns that do not vary."""
    coefficients = rows.new_zeros(3)
    coefficients[varies] = torch.linalg.lstsq(rows[:, varies], lengths[:, None], driver="gelsd").solution[:, 0]
    return coefficients


def drafters_of_bench(bench: Mapping[str, Any], data: Mapping[str, float] | None = None) -> list[SizedDrafter]:
    """Return the trained drafters of a finished bench, a JSON object with `rows`.

    Args:
        bench: The bench. Rows without parameters or accept length are skipped.
        data: By the method of a row, its training data; without it, the seconds of its training count.
    """
    drafters = []
    for row in bench["rows"]:
        amount = row.get("training_seconds") if data is None else data.get(row["method"])
        if row.get("parameters") and row.get("accept_length") and amount:
            drafters.append(SizedDrafter(row["parameters"], amount, row["accept_length"]))
    return drafters


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """The seconds of a round, fitted to measured drafters.

    Attributes:
        target: The median seconds of a round without its draft.
        base: The seconds of a draft that do not depend on the drafter's size.
        per_parameter: The seconds of a draft for each parameter.
    """

    target: float
    base: float
    per_parameter: float

    def draft(self, parameters: float) -> float:
        """Return the seconds of a draft by a drafter of this size."""
        return self.base + self.per_parameter * parameters


def round_times(rows: Sequence[Mapping[str, Any]]) -> RoundTimes:
    """Fit the seconds of rounds to the rows of a bench by least squares; a slope below 0 counts as 0.

    Args:
        rows: At least 2 rows with parameters, seconds, target passes and the share of drafts.

    Raises:
        ValueError: There are fewer rows.
    """
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
