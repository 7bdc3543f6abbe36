"""Speculation over head time: a head drafts its own denoising steps and verifies them in a single call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules.gaussian import reflect_point, reflect_threshold
from mmspec.imagegen.continuous.head_sampling.head import Gaussian, Head, StepDrafter, Trajectory

SLACK = 2.0**-10  # the lost share of acceptance, so that a residual draw takes at most 1 / SLACK tries on average
PROPOSALS = 32  # the proposals of a batch


@dataclass(frozen=True, slots=True)
class DiagonalNormal:
    mean: Tensor  # float64 [..., d]
    scale: Tensor  # float64 [..., d]

    def log_density(self, value: Tensor) -> Tensor:
        """Return float64 [...], the log density at a value [..., d] without its constant."""
        return -(((value - self.mean) / self.scale).square() / 2 + self.scale.log()).sum(-1)

    def rows(self, chosen: Tensor) -> DiagonalNormal:
        return DiagonalNormal(self.mean[chosen], self.scale[chosen])


class ReflectionCoupling:
    """The reflection-maximal coupling of two Gaussians of the same scale. Exact: a rejected value's mirror image has
    distribution p. "Accelerated Diffusion Models via Speculative Sampling". It accepts with probability 2 Phi(-|D| /
    2), where D is the distance of the means in units of each component's scale. No residual is sampled."""

    def probability(self, value: Tensor, q: DiagonalNormal, p: DiagonalNormal) -> Tensor:
        """Return float64 [...], min(1, p / q) at the drafted values float64 [..., d]."""
        return reflect_threshold(value, q.mean, p.mean, p.scale)

    def replacement(self, value: Tensor, q: DiagonalNormal, p: DiagonalNormal, keys: Keys | None) -> Tensor:
        """Return float64 [R, d], the replacements of rejected values."""
        return reflect_point(value, q.mean, p.mean, p.scale)


class RatioCoupling:
    """A coupling of any two Gaussians: accepts with min(1, (1 - SLACK) p / q). Exact. The residual p - min(q, (1 -
    SLACK) p) is drawn by rejection from p; a proposal passes with 1 - min(q / p, 1 - SLACK). The slack gives the number
    of tries a geometric tail between nearly equal Gaussians ("Coupling of Particle Filters" and others)."""

    def probability(self, value: Tensor, q: DiagonalNormal, p: DiagonalNormal) -> Tensor:
        """Return float64 [...], the acceptance probability of the drafted values float64 [..., d]."""
        return ((1 - SLACK) * (p.log_density(value) - q.log_density(value)).clamp_max(1).exp()).clamp_max(1)

    def passes(self, proposal: Tensor, q: DiagonalNormal, p: DiagonalNormal) -> Tensor:
        """Return float64 [..., R], the probability that a proposal [..., R, d] drawn from p passes."""
        return 1 - (q.log_density(proposal) - p.log_density(proposal)).clamp_max(0).exp().clamp_max(1 - SLACK)

    def replacement(self, value: Tensor, q: DiagonalNormal, p: DiagonalNormal, keys: Keys | None) -> Tensor:
        """Return float64 [R, d], draws of the residual; their random numbers come from `keys`, a row for each of R."""
        out = p.mean + p.scale * torch.nan  # rows with parameters that are not finite stay NaN
        left = (p.mean.isfinite() & p.scale.isfinite() & q.mean.isfinite() & q.scale.isfinite()).all(-1).nonzero()[:, 0]
        chunk = 0
        while len(left):
            own, mine = Keys(keys.seeds[left], keys.round), p.rows(left)
            noise = own.normal(Purpose.RESIDUAL, PROPOSALS, value.shape[-1], step=2 * chunk).double().transpose(0, 1)
            uniform = own.uniform(Purpose.RESIDUAL, PROPOSALS, step=2 * chunk + 1).T
            proposal = mine.mean + mine.scale * noise  # [TRIES, rows, d]
            passed = uniform < self.passes(proposal, q.rows(left), mine)
            first, done = passed.int().argmax(0), passed.any(0)
            out[left[done]] = proposal[first, torch.arange(len(left), device=left.device)][done]
            left, chunk = left[~done], chunk + 1
        return out


SAME_SCALE = 1e-5  # relative; a table read twice agrees to rounding


@dataclass(frozen=True, slots=True)
class SpeculativeSample:
    trajectory: Trajectory
    calls: int  # sequential calls of the head; T in plain sampling
    evaluated: int  # rows over all calls; R T in plain sampling
    accepted: Tensor  # int64 [R], accepted drafted steps
    probability: Tensor  # float64 [R, T], of a step's draft; NaN for steps without a verified draft


def speculate(
    head: Head,
    z: Tensor,
    initial: Tensor,
    noise: Tensor,
    uniform: Tensor,
    step_drafter: StepDrafter,
    *,
    window: int = 4,
    guidance: Tensor | None = None,
    temperature: float = 1.0,
    keys: Keys | None = None,
) -> SpeculativeSample:
    """Sample R tokens in fewer calls of the head. Exact: every state has the distribution of plain sampling. "Diffusion
    Models are Secretly Exchangeable: Parallelizing DDPMs via Autospeculation". A round drafts window - 1 steps from the
    last valid state's prediction and evaluates all states in a single call. The first rejected draft is replaced by its
    mirror image (heads with a table of scales) or by a residual draw; if all are accepted, a further step follows. The
    last step is never drafted. Rows are at their own steps, which the verdicts of `mmspec.core.round.rules` cannot express. z
    is [R, width], or [2, R, width] under guidance float [R]; `initial` float [R, d]; `noise` float [R, T, d], `uniform`
    float [R, T] in [0, 1). Heads that predict their scale need `keys`."""
    if window < 1:
        raise ValueError(f"window: expected at least 1 state, got {window}; 1 is plain sampling")
    if window > 1 and not temperature > 0:
        raise ValueError(f"temperature: expected a number above 0 to speculate, got {temperature}; use window=1")
    if window > 1 and head.network_variance and keys is None:
        raise ValueError("keys: expected a row per token for a head that predicts its scale, got None; pass Keys")
    sampler = _SpeculativeSampler(head, z, initial, noise, uniform, step_drafter, guidance, temperature, keys)
    while sampler.left():
        sampler.round(window if sampler.calls else 1)
    return sampler.result()


class _SpeculativeSampler:
    """The states of R rows, each at its own step."""

    def __init__(
        self,
        head: Head,
        z: Tensor,
        initial: Tensor,
        noise: Tensor,
        uniform: Tensor,
        step_drafter: StepDrafter,
        guidance: Tensor | None,
        temperature: float,
        keys: Keys | None,
    ):
        self.head, self.step_drafter, self.temperature, self.keys = head, step_drafter, temperature, keys
        self.about = head.about(z)
        self.guidance, self.noise, self.uniform = guidance, noise, uniform
        self.coupling = RatioCoupling() if head.network_variance else ReflectionCoupling()
        rows, device = len(initial), initial.device
        self.x = initial.clone()
        self.value, self.last_mean, self.last_scale = (torch.zeros_like(initial) for _ in range(3))
        self.step = torch.full((rows,), head.steps - 1, device=device)
        self.log_det, self.accepted = initial.new_zeros(rows), torch.zeros(rows, dtype=torch.long, device=device)
        self.probability = torch.full((rows, head.steps), torch.nan, dtype=torch.float64, device=device)
        self.active = torch.arange(rows, device=device)
        self.held: object = None
        self.calls = self.evaluated = 0

    def left(self) -> bool:
        """Drop finished rows and return whether any row is left."""
        going = self.step[self.active] >= 0
        if not bool(going.all()):
            chosen = going.nonzero()[:, 0]
            self.active = self.active[chosen]
            self.held = None if self.held is None else self.step_drafter.rows(self.held, chosen)
        return len(self.active) > 0

    def round(self, window: int) -> None:
        first = self.step[self.active]
        window = min(window, int(first.max()) + 1)
        step = first[:, None] - torch.arange(window, device=first.device)  # [n, W], of each evaluated state
        states, drafted = self._draft(step)
        law = self._evaluate(states, step)
        count, emitted = self._verify(states, drafted, law, step)
        self._advance(states, law, step, count, emitted)

    def _draft(self, step: Tensor) -> tuple[Tensor, Gaussian]:
        """Return states float [n, W, d], the true state first, and the Gaussians [n, W - 1, d] of the others."""
        states, at = [self.x[self.active]], step[:, :-1].clamp_min(0)
        if not at.shape[1]:
            return states[0][:, None], Gaussian(*(states[0][:, None][:, :0],) * 2)
        ahead = self.step_drafter.ahead(self.held, at)
        kick = self._scale(ahead.log_scale) * self.noise[self.active[:, None], at]
        means = []
        for pull, shift, push in zip(ahead.pull.unbind(1), ahead.shift.unbind(1), kick.unbind(1), strict=True):
            means.append(torch.addcmul(shift, pull, states[-1]))
            states.append(means[-1] + push)
        return torch.stack(states, 1), Gaussian(torch.stack(means, 1), ahead.log_scale)

    def _evaluate(self, states: Tensor, step: Tensor) -> Gaussian:
        """Return the head's Gaussians at all states, float [n, W, d], in a single call."""
        n, window, dim = states.shape
        row = self.active[:, None].expand(-1, window).flatten()
        guidance = None if self.guidance is None else self.guidance[row]
        law = self.head.gaussian(states.flatten(0, 1), step.clamp_min(0).flatten(), self.about, guidance, row)
        self.calls, self.evaluated = self.calls + 1, self.evaluated + n * window
        return Gaussian(law.mean.reshape(n, window, dim), law.log_scale.reshape(n, window, dim))

    def _verify(self, states: Tensor, drafted: Gaussian, law: Gaussian, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return int64 [n], the number of accepted drafts, and float [n, d], the state behind them."""
        count = torch.zeros_like(step[:, 0])
        if drafted.mean.shape[1]:
            there, at, before = step[:, :-1] > 0, step[:, :-1].clamp_min(0), self.active[:, None]
            q, p = self._normal(drafted), self._normal(Gaussian(law.mean[:, :-1], law.log_scale[:, :-1]))
            self._check(q, p, there)
            chance = self.coupling.probability(states[:, 1:].double(), q, p)
            accepted = (there & (self.uniform[before, at] < chance)).cumprod(1)
            count = accepted.sum(1)
            # the accepted drafts and the first rejected draft were verified
            verified = there & (torch.arange(at.shape[1], device=count.device) <= count[:, None])
            self.probability[before, at] = torch.where(verified, chance, self.probability[before, at])
        return count, self._follow(states, drafted, law, step, count)

    def _follow(self, states: Tensor, drafted: Gaussian, law: Gaussian, step: Tensor, count: Tensor) -> Tensor:
        """Return the state behind the accepted drafts: a plain draw, or the replacement of a rejected draft."""
        rows = torch.arange(len(count), device=count.device)
        mean, log_scale, at = law.mean[rows, count], law.log_scale[rows, count], step[rows, count]
        drawn = (at > 0) | self.head.last_noise
        out = mean + self._scale(log_scale) * self.noise[self.active, at] * drawn[:, None]
        rejected = ((count < drafted.mean.shape[1]) & (at > 0)).nonzero()[:, 0]
        if not len(rejected):
            return out
        k = count[rejected]
        q = self._normal(Gaussian(drafted.mean[rejected, k], drafted.log_scale[rejected, k]))
        p = self._normal(Gaussian(mean[rejected], log_scale[rejected]))
        keys = None
        if self.keys is not None:
            keys = Keys(self.keys.seeds[self.active[rejected]], self.keys.round).at(at[rejected, None])
        value = states[rejected, k + 1].double()
        out[rejected] = self.coupling.replacement(value, q, p, keys).to(out.dtype)
        return out

    def _advance(self, states: Tensor, law: Gaussian, step: Tensor, count: Tensor, emitted: Tensor) -> None:
        rows = torch.arange(len(count), device=count.device)
        base, mean, log_scale = states[rows, count], law.mean[rows, count], law.log_scale[rows, count]
        done = (torch.arange(step.shape[1], device=count.device) <= count[:, None]) & (step > 0)
        wide = self._scale(law.log_scale).log().sum(-1)
        self.log_det[self.active] += torch.where(done, wide, 0.0).sum(1)
        at = step[rows, count]
        self.held = self.step_drafter.read(Gaussian(mean, log_scale), base, at)
        self.accepted[self.active] += count
        self.step[self.active] = at - 1
        # step 0 was evaluated at x_1, and the state behind it is x_0
        self.x[self.active] = torch.where((at > 0)[:, None], emitted, base)
        self.value[self.active], self.last_mean[self.active], self.last_scale[self.active] = emitted, mean, log_scale

    def _scale(self, log_scale: Tensor) -> Tensor:
        return self.temperature * log_scale.exp()

    def _normal(self, law: Gaussian) -> DiagonalNormal:
        return DiagonalNormal(law.mean.double(), self._scale(law.log_scale.double()))

    def _check(self, q: DiagonalNormal, p: DiagonalNormal, drawn: Tensor) -> None:
        if self.head.network_variance:
            return
        off = ((q.scale - p.scale).abs() > SAME_SCALE * p.scale).any(-1) & drawn
        if bool(off.any()):
            raise ValueError(
                "step_drafter: expected the head's own scales where they are a table, got others; create it "
                "from the head's schedule, or set the head's network_variance"
            )

    def result(self) -> SpeculativeSample:
        trajectory = Trajectory(self.value, Gaussian(self.last_mean, self.last_scale), self.x, self.log_det)
        return SpeculativeSample(trajectory, self.calls, self.evaluated, self.accepted, self.probability)
