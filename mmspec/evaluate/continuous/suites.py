"""The suites of `mmspec bench continuous` as data: methods, settings, and the columns of their tables."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from mmspec.evaluate.engine.drawn import DrawnMethod, DrawnSuite
from mmspec.evaluate.engine.suite import SAMPLED
from mmspec.evaluate.report.bench_page import IMAGE_COLUMNS
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling
from mmspec.run.continuous_models import ContinuousResources, PipelineArguments, decoding_of, rule_names
from mmspec.run.decoding_options import PLAIN
from mmspec.run.model_kinds import CAUSAL, MASKED

HEAD_STATES = 8  # states per call of the head, where its window is combined with other parts
# schedules of a model -> the setting that enables each
PARTS = {
    "head": f"head={HEAD_STATES}",
    "anneal": "annealing=anneal",
    "checkerboard": "checkerboard=1",
    "lazy": "lazy=lazy",
}


@dataclass(frozen=True, slots=True)
class ContinuousMethod(DrawnMethod):
    shown: ClassVar[tuple[str, ...]] = (*DrawnMethod.shown, "gamma")

    decoding: str = PLAIN  # as text, see `mmspec.methods.parse`
    kind: str = ""  # of model that it supports, "" for all
    gamma: int | None = None  # the steps of a drafted window
    patch: bool = False  # rejected tokens are corrected in place, so that every window advances by gamma
    bitwise: bool = False  # its tokens equal plain decoding's, bit for bit, at any temperature
    head: int = 0  # the states per call of the target's head; 0 for the decoding's own

    def make(self, resources: ContinuousResources) -> PipelineArguments:
        """Return the arguments of the pipeline; their parts are imported and loaded now."""
        rule = self.rule if self.rule in rule_names() else None
        arguments = decoding_of(self.decoding, resources, {"rule": rule})
        return arguments | ({"head_sampling": HeadSampling(self.head)} if self.head else {})


_TIMED = (
    "method", "output", "passes", "target forwards", "tokens a pass", "head calls", "gamma", "acceptance", "c", "v",
    "predicted x", "in full", "seconds", "x plain (10-90 %)", "draft + target + verify share", "identical",
)  # fmt: skip
_JUDGED = tuple(IMAGE_COLUMNS)
_SWEPT = ("method", "output", "knob", "passes", "head calls", "acceptance", "x plain (10-90 %)", *_JUDGED, "identical")
_GAMMAS = (4, 8, 16, 32)
_WINDOWS = (4, 8, 16)  # of a head; 1 is plain sampling
_RELAXED = ("anneal", "checkerboard", "lazy")
_SHARES = (0.05, 0.1, 0.25, 0.5)  # of the decoder's tokens that lazy passes compute beside the required tokens
_DISTANCES = (0.25, 0.5, 1.0, 2.0, 4.0)

_AR = ContinuousMethod(PLAIN, "plain", bitwise=True)


def _cspd(window: str, relaxation: str, gammas: tuple[int, ...] = _GAMMAS) -> tuple[ContinuousMethod, ...]:
    """Return a row per gamma of windows judged by the ratio of the two denoising walks."""
    family = f"cspd-{window}-{relaxation}"
    return tuple(
        ContinuousMethod(
            f"{family}-{gamma}",
            f"CSpD {window} {gamma}, {relaxation} ratio",
            "cspd",
            family,
            SAMPLED,
            "draft",
            f"cspd:window={window},gamma={gamma},relaxation={relaxation}",
            MASKED,
            gamma,
            window == "patch",
            knob=gamma,
        )
        for gamma in gammas
    )


def _bare(gamma: int) -> ContinuousMethod:
    """Return a patched window as published, but drafted from the second step on."""
    return ContinuousMethod(
        f"cspd-patch-bare-{gamma}",
        f"CSpD patch {gamma}, published ratio, nothing pre-filled",
        "cspd",
        "cspd-patch-bare",
        SAMPLED,
        "draft",
        f"cspd:window=patch,gamma={gamma},relaxation=published,prefill=0",
        MASKED,
        gamma,
        True,
        knob=gamma,
    )


def _tolerance(distance: float) -> ContinuousMethod:
    """Return windows judged by their distance from the target's own draws."""
    return ContinuousMethod(
        f"tolerance-{distance:g}",
        f"CSpD own draws within {distance:g}",
        "own draw",
        "tolerance",
        part="draft",
        decoding=f"cspd:window=truncate,gamma=8,tolerance={distance:g}",
        kind=MASKED,
        gamma=8,
        bitwise=distance == 0,
        knob=distance,
    )


def _stack(parts: tuple[str, ...], share: float | None = None) -> ContinuousMethod:
    """Return a row with these schedules of the target; `share` of the decoder's tokens is computed by lazy passes."""
    key, title = _named(parts, share)
    decoding = f"scheduled:{_settings(parts, share)}"
    return ContinuousMethod(key, title, family="stack", at=SAMPLED, decoding=decoding, kind=MASKED)


def _drafted_stack(parts: tuple[str, ...], share: float | None = None, gamma: int = 8) -> ContinuousMethod:
    """Return patched windows whose heads use these schedules as well."""
    key, title = _named(parts, share)
    return ContinuousMethod(
        f"cspd{'' if gamma == 8 else f'-{gamma}'}+{key}",
        f"CSpD patch {gamma} + {title}",
        "cspd",
        "stack",
        SAMPLED,
        "draft",
        f"cspd:gamma={gamma},{_settings(parts, share)}",
        MASKED,
        gamma,
        True,
    )


def _settings(parts: tuple[str, ...], share: float | None) -> str:
    return ",".join(PARTS[part] for part in parts) + ("" if share is None else f":tokens={share:g}")


def _named(parts: tuple[str, ...], share: float | None) -> tuple[str, str]:
    """Return the (key, title) of a combination of schedules."""
    cached = [] if share is None else [f"tokens {share:g}"]
    return "+".join((*parts, *cached)).replace(" ", "-"), " + ".join((*parts, *cached))


_HEADS = (
    ContinuousMethod(
        "head-1", "head window 1", family="head", at=SAMPLED, decoding="scheduled", kind=MASKED, bitwise=True, knob=1
    ),
    *(
        ContinuousMethod(
            f"head-{n}",
            f"head window {n}",
            family="head",
            at=SAMPLED,
            decoding=f"scheduled:head={n}",
            kind=MASKED,
            knob=n,
        )
        for n in _WINDOWS
    ),
)
_STACK = (
    # the head's window alone is one of the rows in _HEADS
    *(_stack(parts) for n in range(1, len(PARTS) + 1) for parts in combinations(PARTS, n) if parts != ("head",)),
    *(_drafted_stack(parts) for n in range(1, len(PARTS) + 1) for parts in combinations(PARTS, n)),
    # the useful relaxed parts, also with cached tokens and with other windows
    _stack(_RELAXED, 0.1),
    _drafted_stack(_RELAXED, 0.1),
    *(_drafted_stack(_RELAXED, gamma=gamma) for gamma in (4, 16)),
)
_TOKENS = tuple(
    ContinuousMethod(
        f"lazy-tokens-{share:g}",
        f"lazy, tokens {share:g}",
        family="lazy-tokens",
        at=SAMPLED,
        decoding=f"scheduled:lazy=lazy:tokens={share:g}",
        kind=MASKED,
        knob=share,
    )
    for share in _SHARES
)
_RULES = ("reflection", "gaussian_block")
_CAUSAL = (
    ContinuousMethod(
        "causal-head-1",
        "head window 1",
        family="causal-head",
        at=SAMPLED,
        decoding="head:window=1",
        kind=CAUSAL,
        bitwise=True,
        knob=1,
    ),
    *(
        ContinuousMethod(
            f"causal-head-{n}",
            f"head window {n}",
            family="causal-head",
            at=SAMPLED,
            decoding=f"head:window={n}",
            kind=CAUSAL,
            knob=n,
        )
        for n in _WINDOWS
    ),
    *(
        ContinuousMethod(
            f"{rule}-{gamma}",
            f"small causal {gamma}, {rule}",
            rule,
            rule,
            SAMPLED,
            "draft",
            f"small:gamma={gamma}",
            CAUSAL,
            gamma,
            knob=gamma,
        )
        for rule in _RULES
        for gamma in (2, 4, 8)
    ),
    *(
        ContinuousMethod(
            f"{rule}-4+head",
            f"small causal 4, {rule} + head window {HEAD_STATES}",
            rule,
            "causal-stack",
            SAMPLED,
            "draft",
            "small:gamma=4",
            CAUSAL,
            4,
            head=HEAD_STATES,
        )
        for rule in _RULES
    ),
)
_EVERY_CSPD = tuple(
    method for window in ("patch", "truncate") for how in ("derived", "published") for method in _cspd(window, how)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousSuite(DrawnSuite):
    """The defaults of a suite of `mmspec bench continuous`."""

    batches: tuple[int, ...] = (1, 16)
    images: int = 200  # that are judged
    guidance: tuple[float, ...] = (2.0,)
    num_iter: tuple[int, ...] = (64,)  # steps of masked models, 0 for a single token per step


_PUBLISHED = (_AR, *_cspd("patch", "published"), *map(_bare, _GAMMAS), *_cspd("truncate", "published"), _tolerance(0.0))
_ALL = (_AR, *_EVERY_CSPD, _tolerance(0.0), _tolerance(1.0), *_HEADS, *_STACK, *_TOKENS, *_CAUSAL)

SUITES: dict[str, ContinuousSuite] = {
    "speed": ContinuousSuite(
        about="every method timed beside plain decoding",
        title="Continuous images: speed",
        methods=_ALL,
        columns=_TIMED,
        guidance=(1.0, 2.0),
    ),
    "quality": ContinuousSuite(
        about="images of every method against plain decoding's",
        title="Continuous images: quality",
        methods=_ALL,
        timed=False,
        judged=True,
        columns=("method", "output", "passes", "tokens a pass", *_JUDGED),
    ),
    "pareto": ContinuousSuite(
        about="every combination of the schedules and every knob: speed against quality",
        title="Continuous images: speed and quality",
        methods=(_AR, *_EVERY_CSPD, *map(_tolerance, (0.0, *_DISTANCES)), *_HEADS, *_STACK, *_TOKENS, *_CAUSAL),
        judged=True,
        columns=_SWEPT,
        batches=(1,),
        plot=True,
    ),
    "published": ContinuousSuite(
        about="the published algorithm, one token a step: speed-ups beside what costs alone predict",
        title="Continuous images: CSpD as published",
        methods=_PUBLISHED,
        columns=_TIMED,
        guidance=(1.0,),
        num_iter=(0,),
    ),
}

# the default (decoding, rule) pairs of a sweep, by the kind of the model
SWEPT = {
    CAUSAL: (
        ("ar", ""),
        ("head:window=8", ""),
        *((f"small:gamma={n}", "") for n in (2, 4)),
        ("small:gamma=4", "reflection"),
    ),
    MASKED: (
        ("ar", ""),
        ("head:window=8", ""),
        *((f"cspd:window=patch,gamma={n}", "") for n in (4, 8, 16)),
        ("cspd:gamma=8,tolerance=1", ""),
    ),
}
