"""Makers of what benches of continuous models compare; what each needs is imported and loaded when it is made."""

from __future__ import annotations

from collections.abc import Callable

from mmspec.evaluate.continuous.methods import How
from mmspec.evaluate.continuous.resources import ContinuousResources

Make = Callable[[ContinuousResources], How]
LAZY = (5, 9)  # full passes at first, and the distance of those after them, in the paper
ANNEALED = 10  # a last walk is as many times shorter than the first; in the paper 50 steps become 5
PARTS = ("head", "anneal", "checkerboard", "lazy")


def cspd(
    gamma: int, window: str = "patch", relaxation: str = "derived", tolerance: float | None = None, *, ahead: int = 1,
    annealed: bool = False,
) -> Make:  # fmt: skip
    """A maker of `CSpD`. ahead, annealed: how both heads are walked, see `_walk`."""

    def make(resources: ContinuousResources) -> How:
        from mmspec.imagegen.continuous.acceptance import Relaxation, published
        from mmspec.imagegen.continuous.cspd import CSpD

        how = published() if relaxation == "published" else Relaxation(determinants=relaxation)
        walk = _walk(resources, ahead, annealed)
        return {"decoding": CSpD(resources.drafter(), window, gamma, how, tolerance=tolerance, walk=walk)}

    return make


def scheduled(ahead: int = 1, annealed: bool = False, checkerboard: bool = False, lazy: bool = False) -> Make:
    """A maker of `ScheduledSteps`: any of the schedules, each of which can be left out."""

    def make(resources: ContinuousResources) -> How:
        from mmspec.imagegen.continuous.stack import ScheduledSteps

        walk = _walk(resources, ahead, annealed)
        return {"decoding": ScheduledSteps(walk, 1 if checkerboard else None, LAZY if lazy else None)}

    return make


def small_causal(rule: str | None = None, length: int = 0, ahead: int = 1) -> Make:
    """A maker of `SmallCausal` drafts of `length` tokens under a rule, plain decoding for None; `ahead` as in `cspd`."""

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
