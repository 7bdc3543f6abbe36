"""One vector drafted from one Gaussian and judged by another: exact couplings for equal and for unequal scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.keys import Keys, Purpose
from mmspec.core.rules.reflection import reflect_point, reflect_threshold

SLACK = 2.0**-10  # of the acceptance given away, so that a residual draw takes 1 / SLACK tries on average at most
TRIES = 32  # proposals made at once


@dataclass(frozen=True, slots=True)
class Normal:
    """mean, scale: float64 [..., d], independent components."""

    mean: Tensor
    scale: Tensor

    def log_density(self, value: Tensor) -> Tensor:
        """float64 [...] at value [..., d], but for its constant."""
        return -(((value - self.mean) / self.scale).square() / 2 + self.scale.log()).sum(-1)

    def rows(self, chosen: Tensor) -> Normal:
        return Normal(self.mean[chosen], self.scale[chosen])


class Mirror:
    """Reflection-maximal coupling of two laws of one scale: a rejected value's mirror image has the law p. Exact.

    "Accelerated Diffusion Models via Speculative Sampling". Accepts with probability 2 Phi(-|D| / 2), D the distance of the
    means in units of the scale of each component; no residual is sampled.
    """

    def probability(self, value: Tensor, q: Normal, p: Normal) -> Tensor:
        """float64 [...], min(1, p / q) at the drafted value float64 [..., d]."""
        return reflect_threshold(value, q.mean, p.mean, p.scale)

    def replacement(self, value: Tensor, q: Normal, p: Normal, keys: Keys | None) -> Tensor:
        """float64 [R, d], what takes the place of a rejected value."""
        return reflect_point(value, q.mean, p.mean, p.scale)


class Ratio:
    """Coupling of any two laws by the ratio of their densities: accepts with min(1, (1 - SLACK) p / q). Exact.

    The rest p - min(q, (1 - SLACK) p) is drawn by rejection from p, each proposal passing with 1 - min(q / p, 1 - SLACK).
    Without the slack ("Coupling of Particle Filters" and others trade it likewise) a rejection between nearly equal laws,
    rare as it is, would need any number of tries; with it their number has a geometric tail.
    """

    def probability(self, value: Tensor, q: Normal, p: Normal) -> Tensor:
        """float64 [...], at the drafted value float64 [..., d]."""
        return ((1 - SLACK) * (p.log_density(value) - q.log_density(value)).clamp_max(1).exp()).clamp_max(1)

    def passes(self, proposal: Tensor, q: Normal, p: Normal) -> Tensor:
        """float64 [..., R], the probability that a proposal [..., R, d] drawn from p is taken."""
        return 1 - (q.log_density(proposal) - p.log_density(proposal)).clamp_max(0).exp().clamp_max(1 - SLACK)

    def replacement(self, value: Tensor, q: Normal, p: Normal, keys: Keys | None) -> Tensor:
        """float64 [R, d], a draw of the rest; its random numbers come from `keys`, one row for each of R."""
        out = p.mean + p.scale * torch.nan  # what no law can be drawn from stays without a value
        left = (p.mean.isfinite() & p.scale.isfinite() & q.mean.isfinite() & q.scale.isfinite()).all(-1).nonzero()[:, 0]
        chunk = 0
        while len(left):
            own, mine = Keys(keys.seeds[left], keys.round), p.rows(left)
            noise = own.normal(Purpose.RESIDUAL, TRIES, value.shape[-1], step=2 * chunk).double().transpose(0, 1)
            uniform = own.uniform(Purpose.RESIDUAL, TRIES, step=2 * chunk + 1).T
            proposal = mine.mean + mine.scale * noise  # [TRIES, rows, d]
            passed = uniform < self.passes(proposal, q.rows(left), mine)
            first, found = passed.int().argmax(0), passed.any(0)
            out[left[found]] = proposal[first, torch.arange(len(left), device=left.device)][found]
            left, chunk = left[~found], chunk + 1
        return out
