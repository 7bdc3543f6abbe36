"""The suites of `mmspec bench image` as data: methods, settings, and what is shown of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmspec.evaluate.engine.drawn import DrawnSuite
from mmspec.evaluate.engine.suite import SAMPLED
from mmspec.evaluate.image.methods import (
    PLAIN,
    ImageDrafterFactory,
    ImageMethod,
    auto,
    eagle_chain,
    eagle_tree,
    jacobi,
    mulo,
    pjd,
    rows,
    scd,
    zipar,
)

_TIMED = (
    "method", "law", "passes", "step compression", "seconds", "x plain (10-90 %)", "draft + target + verify share",
)  # fmt: skip
_JUDGED = ("Frechet (90 %)", "of plain's own (90 %)", "CLIP score", "retrieval", "judge")


_AR = ImageMethod(PLAIN, "plain AR")
_AUTO = ImageMethod("auto", "auto", make=auto)
_INITS = ("random", "uniform", "repeat_left", "repeat_up", "sample_left", "sample_up", "up", "mix")
_TREE = (3, 4)
_SJD = (
    ImageMethod("sjd-16", "SJD 16", make=jacobi(16)),
    ImageMethod("sjd-32", "SJD 32", make=jacobi(32)),
    *(
        ImageMethod(f"sjd-16-{init}", f"SJD 16, {init}", make=jacobi(16, init=init), family="sjd-inits")
        for init in _INITS
    ),
    ImageMethod("sjd-16-tree", "SJD 16 + tree", make=jacobi(16, _TREE)),
)
_SCD = (
    *(
        ImageMethod(f"scd-{coupling}-{window}", f"SCD {coupling} {window}", make=scd(window, coupling))
        for coupling in ("gumbel", "maximal")
        for window in (4, 8, 16, 32, 64)
    ),
    ImageMethod("scd-maximal-16-tree", "SCD maximal 16 + small tree", make=scd(16, "maximal", (2, 3))),
    ImageMethod("scd-gumbel-32-tree", "SCD gumbel 32 + tree", make=scd(32, "gumbel", _TREE)),
    ImageMethod("scd-maximal-32-tree", "SCD maximal 32 + tree", make=scd(32, "maximal", _TREE)),
    ImageMethod("scd-gumbel-32-kseq", "SCD gumbel 32 + tree, K-SEQ", make=scd(32, "gumbel", _TREE, drawn="with_replacement"),
                rule="kseq", at=SAMPLED),
    ImageMethod("scd-gumbel-32-rows", "SCD gumbel 32 + row below", make=rows(8, scd(32))),
    ImageMethod("pac-64", "SJD-PAC 64", make=scd(64, "maximal", _TREE)),
)  # fmt: skip
_EAGLE = (
    ImageMethod("eagle-chain", "EAGLE chain, block", make=eagle_chain(5), part="eagle"),
    ImageMethod("eagle-tree", "EAGLE tree, traversal", make=eagle_tree(24, 4), part="eagle"),
    ImageMethod("eagle-kseq", "EAGLE tree, K-SEQ", make=eagle_tree(24, 4, "with_replacement"), rule="kseq", at=SAMPLED,
                part="eagle"),
)  # fmt: skip

# drafts that a relaxed rule judges: name -> (title, maker)
_DRAFTS: dict[str, tuple[str, ImageDrafterFactory]] = {
    "sjd": ("SJD 32", jacobi(32)),
    "scd": ("SCD gumbel 32", scd(32)),
    "scd-64": ("SCD gumbel 64", scd(64)),
    "eagle": ("EAGLE tree", eagle_tree(24, 4)),
}
# rule -> (title, knob, its other settings, values from the nearly exact to the loose, the value a table shows)
_RULES: dict[str, tuple[str, str, str, tuple[float, ...], float]] = {
    "lantern": ("LANTERN", "delta", "k=64", (0.02, 0.05, 0.1, 0.2, 0.4), 0.1),
    "lantern++": ("LANTERN++", "factor", "k=16", (1.5, 2, 3, 5, 10), 3),
    "gsd": ("GSD", "group", "", (3, 7, 14, 25, 50), 14),
    "coolsd": ("Cool-SD", "delta", "", (1.1, 1.25, 1.5, 2, 3), 1.5),
}


def _relaxed(rule: str, drafts: str, values: tuple[float, ...]) -> tuple[ImageMethod, ...]:
    """Rows of a relaxed rule over one kind of drafts."""
    title, knob, others, _, _ = _RULES[rule]
    below, make = _DRAFTS[drafts]
    family = f"{drafts}-{rule}"
    made = []
    for value in values:
        text = f"{rule}:" + ",".join(filter(None, (f"{knob}={value:g}", others)))
        name = f"{title} on {below}, {knob} {value:g}"
        part = "eagle" if drafts == "eagle" else ""
        made.append(ImageMethod(f"{family}-{value:g}", name, text, family, SAMPLED, part, make=make, knob=value))
    return tuple(made)


_SHOWN = tuple(
    method for rule, (*_, shown) in _RULES.items() for on in _DRAFTS for method in _relaxed(rule, on, (shown,))
)
_SWEPT = tuple(
    method for rule, (*_, all_, _) in _RULES.items() for on in _DRAFTS for method in _relaxed(rule, on, all_)
)


def _rows(
    family: str,
    title: str,
    knob: str,
    make: Callable[[float], ImageDrafterFactory],
    values: tuple[float, ...],
    part: str = "",
) -> tuple[ImageMethod, ...]:
    """Rows of a decoding that is relaxed itself."""
    made = [(value, f"{family}-{value}", f"{title}, {knob} {value}") for value in values]
    return tuple(
        ImageMethod(key, name, make=make(value), family=family, knob=value, at=SAMPLED, part=part)
        for value, key, name in made
    )


def _ordered(*, swept: bool) -> tuple[ImageMethod, ...]:
    """Decodings that leave raster order: one row each, or their knobs."""
    widths, thresholds = (12, 8, 6, 4, 2), (0.2, 0.1, 0.05, 0.02, 0.005)
    return (
        *_rows("zipar", "ZipAR", "window", zipar, widths if swept else (8,)),
        *_rows("zipar-adaptive", "ZipAR adaptive", "window", lambda w: zipar(w, True), widths if swept else (4,)),
        *_rows("pjd", "PJD", "context", lambda c: pjd(c, 8), widths if swept else (8,)),
        *_rows("mulo", "MuLo-SD", "threshold", mulo, thresholds if swept else (0.05,), "low"),
        *_rows("mulo-learned", "MuLo-SD, learned", "threshold", lambda t: mulo(t, True),
               thresholds if swept else (0.05,), "upsampler"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSuite(DrawnSuite):
    """images: of what is judged."""

    images: int = 200
    guidance: tuple[float, ...] = (1.0, 4.0)
    top_k: tuple[int, ...] = (0, 1000)


_ALL = (_AR, _AUTO, *_SJD, *_SCD, *_EAGLE, *_SHOWN, *_ordered(swept=False))
_EXACT_FEW = (
    "sjd-16", "sjd-32", "scd-gumbel-32", "scd-gumbel-64", "scd-maximal-32", "scd-gumbel-32-tree", "eagle-tree",
)  # fmt: skip

SUITES: dict[str, ImageSuite] = {
    "all": ImageSuite(
        about="speed and quality of every method",
        methods=_ALL,
        timed=True,
        judged=True,
        columns=(*_TIMED, *_JUDGED, "identical"),
        temperatures=(1.0, 0.0),
    ),
    "speed": ImageSuite(
        about="every method timed beside plain decoding",
        methods=_ALL,
        timed=True,
        judged=False,
        columns=(*_TIMED, "identical"),
        temperatures=(1.0, 0.0),
    ),
    "quality": ImageSuite(
        about="images of every method against plain decoding's",
        methods=_ALL,
        timed=False,
        judged=True,
        columns=("method", "law", "passes", "step compression", *_JUDGED),
    ),
    "pareto": ImageSuite(
        about="every relaxed rule's knob against the exact methods",
        methods=(_AR, *(one for one in _ALL if one.key in _EXACT_FEW), *_SWEPT, *_ordered(swept=True)),
        timed=False,
        judged=True,
        columns=("method", "law", "knob", "passes", "step compression", *_JUDGED),
        guidance=(4.0,),
        top_k=(0,),
        plot=True,
    ),
}
