"""What is supported of models of continuous tokens: decodings, the law of their output and how that is tested, as records."""

from __future__ import annotations

from mmspec.core.rules.resolve import resolve
from mmspec.evaluate.continuous.kinds import CAUSAL, MASKED, PIPELINES
from mmspec.imagegen.continuous.acceptance import Relaxation
from mmspec.imagegen.continuous.disa import Annealing
from mmspec.imagegen.continuous.lazy import Lazy
from mmspec.imagegen.continuous.own_within import OwnWithin
from mmspec.imagegen.continuous.ratio_rule import TrajectoryRatio
from mmspec.imagegen.continuous.stack import ScheduledSteps
from mmspec.imagegen.continuous.steps import OwnDraw
from mmspec.imagegen.continuous.walk import HeadWalk

_PUBLIC = "the published code's numbers, step by step"
_RATIO = "the published code's numbers; the ratio by the densities of both walks"
_BITS = "equality with plain decoding, bit for bit"
_HEAD = "densities and quadrature of one step, chi-square of whole walks, wrong walks that show"
_SCHEDULE = "settings that change nothing are plain decoding; what is spared is counted"
_BY_HAND = "partial passes written out token by token, wrong caches that show"
_CAUSAL = "the model without a cache, token after token"
_SHARED = "the law of tokens under shared noise, wrong rules that show"


def _law(rule: object) -> str:
    return "exact" if rule.exact else "relaxed"


def _rows() -> list[tuple[str, str, str, object, str]]:
    """(kind, decoding, options of `mmspec image` or arguments in Python, what says whether it is exact, how it is tested)."""
    gaussians = [(rule, resolve(rule, greedy=False)) for rule in ("gaussian_block", "reflection")]
    return [
        (MASKED, "plain", "--decoding ar", OwnDraw(), _PUBLIC),
        (MASKED, "head time", "--decoding head", ScheduledSteps(walk=HeadWalk(8)), _HEAD),
        (MASKED, "CSpD", "--decoding cspd", TrajectoryRatio(Relaxation()), _RATIO),
        (MASKED, "CSpD, own draws", "--decoding cspd --tolerance 0", OwnWithin(0.0), _BITS),
        (MASKED, "CSpD, own draws", "--decoding cspd --tolerance 1", OwnWithin(1.0), "verdicts on windows made by hand"),
        (MASKED, "annealed heads (DiSA)", "HeadWalk(annealing=Annealing())", ScheduledSteps(walk=HeadWalk(1, Annealing())),
         _SCHEDULE),
        (MASKED, "checkerboard (GtR)", "ScheduledSteps(reconstruct=1)", ScheduledSteps(reconstruct=1), _SCHEDULE),
        (MASKED, "cached null branch (LazyMAR)", "ScheduledSteps(lazy=Lazy())", ScheduledSteps(lazy=Lazy()), _SCHEDULE),
        (MASKED, "cached tokens (LazyMAR)", "ScheduledSteps(lazy=Lazy(tokens=0.1))",
         ScheduledSteps(lazy=Lazy(tokens=0.1)), _BY_HAND),
        (CAUSAL, "plain", "--decoding ar", resolve("exact", greedy=False), _CAUSAL),
        (CAUSAL, "head time", "--decoding head", HeadWalk(8), _HEAD),
        *((CAUSAL, "small model", f"--decoding small --rule {name}", rule, _SHARED) for name, rule in gaussians),
    ]  # fmt: skip


def continuous_records() -> list[dict]:
    """One record per kind of model and decoding."""
    named = {kind: name for name, kind in PIPELINES.items()}
    return [
        {
            "model of vectors": named[kind],
            "decoding": decoding,
            "asked by": asked,
            "law": _law(rule),
            "tested by": tested,
        }
        for kind, decoding, asked, rule, tested in _rows()
    ]
