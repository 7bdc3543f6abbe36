"""Ways to decode an image of continuous tokens by name, as the command line makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmspec.evaluate.continuous.methods import PipelineArguments
from mmspec.evaluate.continuous.methods import cspd as cspd_with
from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.engine.config import check_choice, check_overrides
from mmspec.evaluate.model_kinds import CAUSAL, MASKED
from mmspec.imagegen.continuous.causal.drafter import SmallCausal
from mmspec.imagegen.continuous.cspd.drafter import CSpD
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling
from mmspec.imagegen.continuous.schedules.scheduled_steps import ScheduledSteps

WINDOWS = ("patch", "truncate")
RULES = ("reflection", "gaussian_block")


@dataclass(frozen=True, slots=True)
class ContinuousDecodingOverrides:
    """What a user asked of a decoding; None leaves it as the decoding has it.

    window: of cspd "patch" or "truncate", of head how many states a call evaluates.   gamma: steps or tokens drafted.
    tolerance: how far the target's own draws may be from drafts.   rule: of small's drafts.
    """

    window: str | None = None
    gamma: int | None = None
    tolerance: float | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class ContinuousDecodingSpec:
    """A decoding as the command line offers it.   kinds: of the models it is for.   takes: the wishes it can grant."""

    about: str
    make: Callable[[ContinuousResources, ContinuousDecodingOverrides], PipelineArguments]
    kinds: tuple[str, ...] = (MASKED, CAUSAL)
    takes: tuple[str, ...] = ()


def cspd(resources: ContinuousResources, wishes: ContinuousDecodingOverrides) -> PipelineArguments:
    """`CSpD`: patched windows of 8 steps; a tolerance has the target's own draws emitted, which needs truncation."""
    window = wishes.window or ("patch" if wishes.tolerance is None else "truncate")
    gamma = 8 if wishes.gamma is None else wishes.gamma
    return {"decoding": CSpD(resources.drafter(), window, gamma, tolerance=wishes.tolerance)}


def stack(resources: ContinuousResources, wishes: ContinuousDecodingOverrides) -> PipelineArguments:
    """`CSpD` as above, with the schedules that paid in every bench: annealed heads, a checkerboard, the null branch cached."""
    return cspd_with(8 if wishes.gamma is None else wishes.gamma, parts=("anneal", "checkerboard", "lazy"))(resources)


def head(resources: ContinuousResources, wishes: ContinuousDecodingOverrides) -> PipelineArguments:
    """Speculation over head time, 8 states a call."""
    sampling = HeadSampling(states(wishes.window))
    if resources.kind == MASKED:
        return {"decoding": ScheduledSteps(head_sampling=sampling)}
    return {"head_sampling": sampling}


def small(resources: ContinuousResources, wishes: ContinuousDecodingOverrides) -> PipelineArguments:
    """`SmallCausal`: 4 tokens a round, block verification of Gaussians."""
    gamma = 4 if wishes.gamma is None else wishes.gamma
    return {
        "decoding": SmallCausal(resources.drafter().model.transformer, gamma),
        "rule": wishes.rule or "gaussian_block",
    }


DECODINGS: dict[str, ContinuousDecodingSpec] = {
    "ar": ContinuousDecodingSpec("plain decoding", lambda resources, wishes: {}),
    "cspd": ContinuousDecodingSpec("a smaller masked model drafts windows; relaxed unless the tolerance is 0", cspd,
                                   (MASKED,), ("window", "gamma", "tolerance")),
    "stack": ContinuousDecodingSpec("cspd with annealed heads, a checkerboard, the null branch cached; relaxed", stack,
                                    (MASKED,), ("gamma",)),
    "head": ContinuousDecodingSpec("the head drafts its own denoising steps; exact", head, takes=("window",)),
    "small": ContinuousDecodingSpec("a smaller causal model drafts tokens; exact", small, (CAUSAL,), ("gamma", "rule")),
}  # fmt: skip


def states(window: str | None) -> int:
    """States of a head's window.   Raises ValueError for what is no number."""
    if window is not None and not (window.isascii() and window.isdigit()):
        raise ValueError(
            f"--window: expected a number of states for --decoding head, got {window!r}, write for example 8"
        )
    return 8 if window is None else int(window)


def decoding_of(
    name: str, resources: ContinuousResources, wishes: ContinuousDecodingOverrides = ContinuousDecodingOverrides()
) -> PipelineArguments:
    """Arguments of the pipeline for the decoding called `name`.

    Raises ValueError for names unknown to the model's kind, wishes that cannot be granted, settings the decoding refuses, and
    where there is no drafter.
    """
    known = [one for one, choice in DECODINGS.items() if resources.kind in choice.kinds]
    check_choice("--decoding", name, known, f" for {resources.name}, a {resources.kind} model of vectors")
    listed = {"rule": RULES, "window": WINDOWS} if name == "cspd" else {"rule": RULES}
    check_overrides(wishes, f"--decoding {name}", DECODINGS[name].takes, **listed)
    return DECODINGS[name].make(resources, wishes)
