"""Makers of what benches of continuous models compare; what each needs is imported and loaded when it is made."""

from __future__ import annotations

from collections.abc import Callable, Collection

from mmspec.evaluate.continuous.methods import How
from mmspec.evaluate.continuous.resources import ContinuousResources

Make = Callable[[ContinuousResources], How]
ANNEALED = 10  # a last walk is as many times shorter than the first; in the paper 50 steps become 5
AHEAD = 8  # states that a call of the head evaluates where its window is one of several parts
PARTS = ("head", "anneal", "checkerboard", "lazy")


def cspd(
    gamma: int, window: str = "patch", relaxation: str = "derived", tolerance: float | None = None,
    parts: Collection[str] = (), share: float | None = None, prefill: float = 0.05,
) -> Make:  # fmt: skip
    """A maker of `CSpD`. parts: schedules that are on, of PARTS.   share: see `scheduled`."""

    def make(resources: ContinuousResources) -> How:
        from mmspec.imagegen.continuous.acceptance import Relaxation, published
        from mmspec.imagegen.continuous.cspd import CSpD

        how = published() if relaxation == "published" else Relaxation(determinants=relaxation)
        settings = _schedules(resources, parts, share=share)
        return {"decoding": CSpD(resources.drafter(), window, gamma, how, prefill, tolerance, **settings)}

    return make


def scheduled(parts: Collection[str] = (), ahead: int = AHEAD, share: float | None = None) -> Make:
    """A maker of `ScheduledSteps` with the schedules `parts` of PARTS. ahead: states a call of the head evaluates.
    share: of the decoder's tokens that lazy passes compute beside those they must, None for all."""

    def make(resources: ContinuousResources) -> How:
        from mmspec.imagegen.continuous.stack import ScheduledSteps

        return {"decoding": ScheduledSteps(**_schedules(resources, parts, ahead, share))}

    return make


def _schedules(
    resources: ContinuousResources, parts: Collection[str], ahead: int = AHEAD, share: float | None = None
) -> dict:
    """Arguments of `Schedules`."""
    from mmspec.imagegen.continuous.lazy import Lazy

    walk = _walk(resources, ahead if "head" in parts else 1, "anneal" in parts)
    return {
        "walk": walk,
        "reconstruct": 1 if "checkerboard" in parts else None,
        "lazy": Lazy(tokens=share) if "lazy" in parts else None,
    }


def small_causal(rule: str | None = None, length: int = 0, ahead: int = 1) -> Make:
    """A maker of `SmallCausal` drafts of `length` tokens under a rule, plain decoding for None; `ahead` as in
    `scheduled`."""

    def make(resources: ContinuousResources) -> How:
        from mmspec.imagegen.continuous.causal.drafter import SmallCausal

        how: How = {"head_walk": _walk(resources, ahead, False)}
        if rule is not None:
            how |= {"decoding": SmallCausal(resources.drafter().model.transformer, length), "rule": rule}
        return how

    return make


def _walk(resources: ContinuousResources, ahead: int, annealed: bool) -> object:
    """ahead: states that a call of the head evaluates.   annealed: walks get shorter from the head's own steps on."""
    from mmspec.imagegen.continuous.disa import Annealing
    from mmspec.imagegen.continuous.walk import HeadWalk

    steps = resources.head_steps
    return HeadWalk(ahead, Annealing(steps, max(2, steps // ANNEALED)) if annealed else None)
