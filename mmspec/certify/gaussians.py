"""Rules over continuous values: the joint law of what several of them emit, by a chi-square test."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.certify.certificate import CaseResult, Certificate
from mmspec.certify.samples import chi_square, visible_distance
from mmspec.core.draft import Draft, Law
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.rules import Rule
from mmspec.core.tree import chain
from mmspec.core.verdict import run_of

SIZE, LENGTH, SCALE, BINS = 2, 2, 0.8, 3
OFFSETS = {"near": 0.2, "apart": 0.9, "far": 2.5}  # between the drafter's mean and the target's, in deviations


class GaussianRule:
    """A rule that judges vectors drawn from isotropic Gaussians, to be certified on chains of two vectors of two numbers."""

    def __init__(self, rule: Rule):
        self.rule, self.__name__ = rule, f"rule {rule.name}"

    def certificate(self, told: Callable[[CaseResult], None] | None = None, rows: int = 60_000) -> Certificate:
        """Every mean follows from the value before it. Each emitted value is taken to its place in the target's law, a number
        in [0, 1) each, and the first three values have to fill a cube of six dimensions evenly.
        """
        results = []
        for seed, (name, offset) in enumerate(OFFSETS.items()):
            place, accepted = self._places(offset, rows, seed)
            counts = torch.bincount(place, minlength=BINS ** (SIZE * (LENGTH + 1))).double()
            flat = torch.full_like(counts, rows / len(counts))
            test = chi_square(counts, flat)
            off = float((counts - flat).abs().sum() / rows / 2)
            results.append(CaseResult(f"Gaussians {name}", tuple(range(LENGTH)), "without_replacement", BINS**SIZE, rows, rows,
                                      None, accepted, off, test.passed, test.statistic, test.freedom, test.limit,
                                      visible_distance(rows, test.freedom)))  # fmt: skip
            if told is not None:
                told(results[-1])
        passed = all(result.passed for result in results)
        says = (
            "the emitted values have the target's law" if passed else "the emitted values do not have the target's law"
        )
        worst = max(result.distance for result in results)
        return Certificate(self.__name__, "samples", passed, worst, None, says, [], results)

    def _places(self, offset: float, rows: int, seed: int) -> tuple[Tensor, float]:
        """The cell each row's emitted values fall into int64 [R], and how many were accepted on average."""
        keys = Keys.of(seed, rows)
        start = torch.zeros(rows, SIZE, dtype=torch.float64)
        noise = keys.normal(Purpose.DRAFT, LENGTH, SIZE).double()
        values = [start]
        for i in range(LENGTH):
            values.append(_mean(values[-1], offset) + SCALE * noise[:, i])
        value = torch.stack(values, 1)
        scale = torch.full((rows, LENGTH + 1, 1), SCALE, dtype=torch.float64)
        row = torch.tensor([*range(LENGTH), -1])
        law = Law("without_replacement", row, mean=_mean(value[:, :-1], offset), scale=scale[:, :-1])
        draft, evidence = Draft(value, chain(LENGTH), law), Evidence(mean=_mean(value, 0.0), scale=scale)
        weights = self.rule.weigh(evidence, draft)
        verdict = self.rule.select(weights, keys.uniform(Purpose.ACCEPT, LENGTH + 1), draft)
        verdict = self.rule.resample(evidence, draft, weights, verdict, keys)
        run, count = run_of(draft, verdict)
        after = Keys.of(seed + 1000, rows).normal(Purpose.BONUS, LENGTH + 1, SIZE).double()
        cell, last = torch.zeros(rows, dtype=torch.long), start
        for i in range(LENGTH + 1):
            mean = _mean(last, 0.0)
            last = torch.where((i < count)[:, None], run[:, i], mean + SCALE * after[:, i])
            share = torch.special.ndtr((last - mean) / SCALE).clamp(0, 1 - 1e-12)
            for one in (share * BINS).long().unbind(-1):
                cell = cell * BINS + one
        return cell, float(verdict.depth.double().mean())


def _mean(value: Tensor, offset: float) -> Tensor:
    """Of the value that follows, float64 [..., 2]: turned, shortened, and for the drafter pushed to a side."""
    turned = torch.stack((-value[..., 1], value[..., 0]), -1)
    return 0.6 * value + 0.3 * turned + offset * SCALE * torch.tensor([0.8, -0.6], dtype=torch.float64)
