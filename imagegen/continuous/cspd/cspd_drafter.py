"""CSpD: a smaller model of masked tokens drafts a window, and a single pass of the target verifies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, gather_nodes
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules.base import Rule, UnsupportedCombination
from mmspec.core.round.tree import chains
from mmspec.imagegen.continuous.cspd.acceptance import Determinants, Relaxation
from mmspec.imagegen.continuous.cspd.rules import OwnWithin, TrajectoryRatio
from mmspec.imagegen.continuous.cspd.target import Context, StepwiseTarget, WindowTarget
from mmspec.imagegen.continuous.cspd.window import WindowDraft, WindowPlan, plan_window, reshape_rows
from mmspec.imagegen.continuous.head_sampling.head import Gaussian, Trajectory
from mmspec.imagegen.continuous.masked_target import MaskedModel, MaskedTarget
from mmspec.imagegen.continuous.schedules.delayed_cache import DelayedCache
from mmspec.imagegen.continuous.schedules.generation_order import GenerationStep
from mmspec.imagegen.continuous.schedules.scheduled_steps import Schedules, schedules_of
from mmspec.io.validation import Range, Share, number
from mmspec.methods import MethodParts, method, value_of

Window = Literal["patch", "truncate"]


@dataclass(frozen=True, slots=True)
class CSpD(Schedules):
    """Drafts `gamma` autoregressive steps with a smaller model, and the target verifies them in a single pass. Relaxed.

    "Continuous Speculative Decoding for Autoregressive Image Generation". Both models draw a position with the same
    noise, order and guidance scale.

    Args:
        drafter: A model of masked tokens of the target's sizes, or its pipeline.
        window: The effect of a rejection. "patch": each token is accepted or rejected alone and replaced at its place,
            as in the public code and its published speed. "truncate": nothing behind the step of the first rejection is
            accepted, as in the paper.
        gamma: The autoregressive steps of a window.
        relaxation: See `Relaxation`; a number is its temperature.
        prefill: The fraction of the tokens that the target draws alone at first; 0.05 in the paper.
        tolerance: None verifies by the ratio of both trajectories. With a distance, the target's own draws are emitted
            up to the first step whose draft is farther away (`OwnWithin`). 0 gives plain decoding's output bit for bit,
            but saves no pass (`StepwiseTarget`). Needs "truncate" and "drafts".
        context: The tokens that the target sees, see `WindowTarget`; None for "prefix" with "patch", "drafts" with
            "truncate".
        num_sampling_steps: The steps of the drafter's head, None for the target's. Another number needs a tolerance,
            because determinants of trajectories of different lengths cannot be compared.
        head_sampling: Of both models, see `Schedules`.
        reconstruct: Of both models, see `Schedules`.
        lazy: Of both models, see `Schedules`. Needs "patch" and "prefix", where all rows have the same number of
            passes.
        cache: The drafter's own cache of decoded tokens, see `DelayedCache`; None for none. It excludes `lazy`.

    Raises:
        ValueError: A setting is out of range, or a combination is unsupported.
    """

    drafter: MaskedModel
    window: Window = "patch"
    gamma: Annotated[int, Range(1, hint="leave the decoding out for none")] = 8
    relaxation: Relaxation | float = field(default_factory=Relaxation)
    prefill: Share = 0.05
    tolerance: float | None = None
    context: Context | None = None
    num_sampling_steps: str | int | None = None
    cache: DelayedCache | None = None

    def __post_init__(self) -> None:
        Schedules.__post_init__(self)
        if self.context is None:
            object.__setattr__(self, "context", "prefix" if self.window == "patch" else "drafts")
        if not isinstance(self.relaxation, Relaxation):
            object.__setattr__(self, "relaxation", Relaxation(number("relaxation", self.relaxation)))
        object.__setattr__(self, "drafter", getattr(self.drafter, "model", self.drafter))
        if self.tolerance is not None and (self.window, self.context) != ("truncate", "drafts"):
            raise ValueError(
                f"tolerance: expected window 'truncate' and context 'drafts', got {self.window!r} and "
                f"{self.context!r}; a token's own draw must see the tokens before it"
            )
        if self.lazy is not None and (self.window, self.context) != ("patch", "prefix"):
            raise ValueError(
                f"lazy: expected window 'patch' and context 'prefix', where all rows have the same number of "
                f"passes, got {self.window!r} and {self.context!r}; leave lazy out"
            )
        if self.cache is not None and (self.lazy is not None or not isinstance(self.cache, DelayedCache)):
            raise ValueError(
                f"cache: expected a DelayedCache without lazy, got {self.cache!r} with lazy {self.lazy!r}; leave "
                "one of them out"
            )

    @property
    def name(self) -> str:
        cache = [] if self.cache is None else [self.cache.name]
        return ", ".join([f"cspd {self.window} {self.gamma}", *self.parts, *cache])

    def rule(self, model: MaskedModel) -> Rule:
        if self.tolerance is not None:
            return OwnWithin(self.tolerance, self.plain)
        return TrajectoryRatio(self.relaxation, truncate=self.window == "truncate")

    def target(self, model: MaskedModel, labels: Tensor, **settings: Any) -> MaskedTarget:
        if self.tolerance is None and settings["temperature"] == 0:
            raise ValueError(
                "temperature: expected a number above 0 for a ratio of densities, got 0; give a tolerance or decode plainly"
            )
        kind = StepwiseTarget if self.tolerance == 0 else WindowTarget
        windows = self._windows(settings["steps"], model.total)
        return kind(
            self.cached(model),
            labels,
            context=self.context,
            head_sampling=self.head_sampling,
            windows=windows,
            **settings,
        )

    def _windows(self, steps: Sequence[GenerationStep], total: int) -> list[int] | None:
        """Return for every step the first step of its window; None where that depends on rejections."""
        if self.window == "truncate":
            return None
        alone = max(1, sum(total - step.last < self.prefill * total for step in steps))  # the first step has no draft
        return [n if n < alone else n - (n - alone) % self.gamma for n in range(len(steps))]

    def open(self, target: MaskedTarget) -> CSpDState:
        return CSpDState(self, target)


class CSpDState:
    def __init__(self, settings: CSpD, target: MaskedTarget):
        model = settings.drafter
        if (model.total, model.dim) != (target.total, target.model.dim):
            raise UnsupportedCombination(
                f"drafter: expected {target.total} tokens of {target.model.dim} values as the target, got {model.total} of "
                f"{model.dim}; use a model of the same autoencoder"
            )
        steps = settings.num_sampling_steps
        self.settings, self.model = settings, settings.cached(model)
        self.head = model.head(target.num_sampling_steps if steps is None else steps)
        if self.head.steps > target.noise.steps or (
            settings.tolerance is None and self.head.steps != target.head.steps
        ):
            raise UnsupportedCombination(
                f"num_sampling_steps: expected {target.head.steps} steps of the drafter's head, as in the target's head, got "
                f"{self.head.steps}; change one"
            )
        # refuses more steps than the head has
        settings.head_sampling.counts(target.plan, target.total, self.head.steps)
        self.passes = 0

    def propose(self, target: MaskedTarget, keys: Keys) -> Draft:
        least = min(n for n, live in zip(target.filled, target.live, strict=True) if live)
        if least < self.settings.prefill * target.total:
            return target.open_draft(target.next_positions())
        ahead = plan_window(target, self.settings.gamma)
        drawn = self._draw(target, ahead)
        scale = target.temperature * drawn.last.log_scale.exp()
        law = Law("without_replacement", None, mean=drawn.last.mean, scale=scale)
        position, step = pad(ahead.position, (1, 0), value=target.total), pad(ahead.step, (1, 0), value=-1)
        return WindowDraft(
            drawn.value,
            chains((0,) * position.shape[1], target.device),
            law,
            step >= 0,
            position,
            step=step,
            steps=len(ahead.counts),
            trajectory=drawn,
            temperature=target.temperature,
        )

    @torch.no_grad()
    def _draw(self, target: MaskedTarget, ahead: WindowPlan) -> Trajectory:
        """Draw the drafter's trajectories step by step, each given all before it; rows [B, 1 + N], padding first."""
        rows, nodes, dim = *ahead.position.shape, self.model.dim
        model = self.model if self.settings.cache is None else self.settings.cache.window(self.model)
        values = pad(target.values, (0, 0, 0, 1))  # the spare last column is for padding
        known = pad(target.known, (0, 1))
        table = values.new_zeros(rows, nodes + 1, 4 * dim + 1)  # value, mean, log scale, state, log determinant
        for step in range(len(ahead.counts)):
            column, there = ahead.columns(step)
            place = torch.where(there, ahead.position.gather(1, column), target.total)
            drawn = self._draw_step(model, target, values[:, :-1], known[:, :-1], place)
            last = drawn.last
            packed = torch.cat((drawn.value, last.mean, last.log_scale, drawn.state, drawn.log_det[..., None]), -1)
            values.scatter_(1, place[..., None].expand_as(drawn.value), drawn.value)
            known.scatter_(1, place, True)
            node = torch.where(there, column, nodes)
            table.scatter_(1, node[..., None].expand_as(packed), packed)
        value, mean, log_scale, state, log_det = table.roll(1, 1).split((dim, dim, dim, dim, 1), -1)
        first = torch.arange(nodes + 1, device=table.device)[:, None] == 0
        value, mean, log_scale, state = (x.masked_fill(first, 0) for x in (value, mean, log_scale, state))
        return Trajectory(value, Gaussian(mean, log_scale), state, log_det[..., 0].masked_fill(first[:, 0], 0))

    def _draw_step(
        self, model: MaskedModel, target: MaskedTarget, values: Tensor, known: Tensor, place: Tensor
    ) -> Trajectory:
        z = model.condition(values, ~known, target.labels, target.scales is not None, place)
        self.passes += 1
        at = place.clamp(max=target.total - 1)
        z = torch.stack([gather_nodes(branch, at) for branch in z])
        return reshape_rows(target.draw(self.head, z, place), place.shape)

    def observe(self, target: MaskedTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        return None


@method(
    "cspd",
    domain="continuous",
    kind="decoding",
    title="CSpD",
    exact=False,
    models=("masked",),
    needs=("draft",),
    order=2,
    about="a smaller masked model drafts windows; a tolerance of 0 is exact",
    exact_at="tolerance=0",
    paper="Continuous Speculative Decoding for Autoregressive Image Generation",
)
def cspd(
    parts: MethodParts,
    window: Window | None = None,
    gamma: int = 8,
    tolerance: float | None = None,
    relaxation: Determinants = "derived",
    prefill: float = 0.05,
    head: int = 1,
    annealing: str | None = None,
    checkerboard: int | None = None,
    lazy: str | None = None,
    cache: str | None = None,
) -> CSpD:
    """`CSpD` with the smaller model of a model.

    Args:
        parts: The model, the smaller model "draft", and the model's head, "head".
        window: The effect of a rejection; "truncate" with a tolerance, else "patch".
        gamma: The autoregressive steps of a window.
        tolerance: The largest distance of drafts from the target's own draws, which are then emitted; 0 is plain
            decoding's output.
        relaxation: The ratio of the scales of earlier denoising steps; published is that of the public code.
        prefill: The share of the tokens that the target draws alone at first.
        head: The number of states that a call of the head evaluates per token.
        annealing: The schedule of denoising steps, such as anneal or (anneal:first=50,last=5).
        checkerboard: The steps for the cells between a checkerboard, which is filled first; none for MAR's order.
        lazy: The schedule of cached features, such as lazy or lazy:tokens=0.1.
        cache: The cache of the smaller model, such as delayed or (delayed:every=4,greedy=true).
    """
    chosen = window or ("patch" if tolerance is None else "truncate")
    schedules = schedules_of(parts, head, annealing, checkerboard, lazy)
    ratio = Relaxation(determinants=relaxation)
    schedule = value_of(cache, "continuous", "schedule", parts)
    return CSpD(parts.part("draft"), chosen, gamma, ratio, prefill, tolerance, cache=schedule, **schedules)


@method(
    "stack",
    domain="continuous",
    kind="decoding",
    title="CSpD stack",
    exact=False,
    models=("masked",),
    needs=("draft",),
    about="CSpD with annealed heads, a checkerboard, and the null branch cached",
    order=3,
)
def stack(parts: MethodParts, gamma: int = 8) -> CSpD:
    """`CSpD` with the schedules that were faster in every bench.

    Args:
        parts: The model and the smaller model, "draft".
        gamma: The autoregressive steps of a window.
    """
    return cspd(parts, gamma=gamma, annealing="anneal", checkerboard=1, lazy="lazy")
