"""The methods that `mmspec bench continuous` compares, as data, and factories of their decodings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.engine.suite import Method

PLAIN = "ar"
PipelineArguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ContinuousMethod(Method):
    """make: arguments of the pipeline, `decoding` and what goes with it; what they need is imported and loaded when called.
    kind: of the models it is for, "" for all.   gamma: steps a drafted window has.   patch: rejected tokens are put right
    where they stand, so that every window advances by gamma.   bitwise: its tokens are plain decoding's, bit for bit, at any
    temperature.   knob: what a family differs in.
    """

    make: Callable[[ContinuousResources], PipelineArguments] = lambda resources: {}
    kind: str = ""
    gamma: int | None = None
    patch: bool = False
    bitwise: bool = False
    knob: float | None = None

    def row(self) -> dict:
        return {
            "method": self.title,
            "key": self.key,
            "family": self.family,
            "knob": self.knob,
            "gamma": self.gamma,
        }


ContinuousDecodingFactory = Callable[[ContinuousResources], PipelineArguments]
ANNEALED = 10  # a last walk is as many times shorter than the first; in the paper 50 steps become 5
HEAD_STATES = 8  # states that a call of the head evaluates where its window is one of several parts
PARTS = ("head", "anneal", "checkerboard", "lazy")


def cspd(
    gamma: int, window: str = "patch", relaxation: str = "derived", tolerance: float | None = None,
    parts: Collection[str] = (), share: float | None = None, prefill: float = 0.05,
) -> ContinuousDecodingFactory:  # fmt: skip
    """A maker of `CSpD`. parts: schedules that are on, of PARTS.   share: see `scheduled`."""

    def make(resources: ContinuousResources) -> PipelineArguments:
        from mmspec.imagegen.continuous.cspd.acceptance import Relaxation, published_relaxation
        from mmspec.imagegen.continuous.cspd.drafter import CSpD

        how = published_relaxation() if relaxation == "published" else Relaxation(determinants=relaxation)
        settings = _schedules(resources, parts, share=share)
        return {"decoding": CSpD(resources.drafter(), window, gamma, how, prefill, tolerance, **settings)}

    return make


def scheduled(
    parts: Collection[str] = (), ahead: int = HEAD_STATES, share: float | None = None
) -> ContinuousDecodingFactory:
    """A maker of `ScheduledSteps` with the schedules `parts` of PARTS. ahead: states a call of the head evaluates.
    share: of the decoder's tokens that lazy passes compute beside those they must, None for all."""

    def make(resources: ContinuousResources) -> PipelineArguments:
        from mmspec.imagegen.continuous.schedules.scheduled_steps import ScheduledSteps

        return {"decoding": ScheduledSteps(**_schedules(resources, parts, ahead, share))}

    return make


def _schedules(
    resources: ContinuousResources, parts: Collection[str], ahead: int = HEAD_STATES, share: float | None = None
) -> dict:
    """Arguments of `Schedules`."""
    from mmspec.imagegen.continuous.schedules.feature_cache import Lazy

    return {
        "head_sampling": _head_sampling(resources, ahead if "head" in parts else 1, "anneal" in parts),
        "reconstruct": 1 if "checkerboard" in parts else None,
        "lazy": Lazy(tokens=share) if "lazy" in parts else None,
    }


def small_causal(rule: str | None = None, length: int = 0, ahead: int = 1) -> ContinuousDecodingFactory:
    """A maker of `SmallCausal` drafts of `length` tokens under a rule, plain decoding for None; `ahead` as in
    `scheduled`."""

    def make(resources: ContinuousResources) -> PipelineArguments:
        from mmspec.imagegen.continuous.causal.drafter import SmallCausal

        how: PipelineArguments = {"head_sampling": _head_sampling(resources, ahead, False)}
        if rule is not None:
            how |= {"decoding": SmallCausal(resources.drafter().model.transformer, length), "rule": rule}
        return how

    return make


def _head_sampling(resources: ContinuousResources, ahead: int, annealed: bool) -> object:
    """ahead: states that a call of the head evaluates.   annealed: walks get shorter from the head's own steps on."""
    from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling
    from mmspec.imagegen.continuous.schedules.step_annealing import Annealing

    steps = resources.head_steps
    return HeadSampling(ahead, Annealing(steps, max(2, steps // ANNEALED)) if annealed else None)
