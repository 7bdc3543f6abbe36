"""The suites of `mmspec bench image` as data: methods, settings, and the columns of tables."""

from __future__ import annotations

from mmspec.evaluate.engine.suite import SAMPLED
from mmspec.evaluate.image.families import FAMILIES
from mmspec.evaluate.image.methods import TIMED, ImageMethod, ImageSuite
from mmspec.evaluate.report.bench_page import IMAGE_COLUMNS
from mmspec.methods import MethodInfo, methods
from mmspec.run.decoding_options import PLAIN

_JUDGED = tuple(IMAGE_COLUMNS)


_AR = ImageMethod(PLAIN, "plain AR")
_AUTO = ImageMethod("auto", "auto", decoding="auto")
_INITS = ("random", "uniform", "repeat_left", "repeat_up", "sample_left", "sample_up", "up", "mix")
_SJD = (
    ImageMethod("sjd-16", "SJD 16", decoding="sjd:window=16"),
    ImageMethod("sjd-32", "SJD 32", decoding="sjd:window=32"),
    *(
        ImageMethod(f"sjd-16-{init}", f"SJD 16, {init}", decoding=f"sjd:window=16,init={init}", family="sjd-inits")
        for init in _INITS
    ),
    ImageMethod("sjd-16-tree", "SJD 16 + tree", decoding="sjd:window=16,tree=3x4"),
)
_SCD = (
    *(
        ImageMethod(f"scd-{coupling}-{n}", f"SCD {coupling} {n}", decoding=f"scd:window={n},coupling={coupling}")
        for coupling in ("gumbel", "maximal")
        for n in (4, 8, 16, 32, 64)
    ),
    ImageMethod(
        "scd-maximal-16-tree", "SCD maximal 16 + small tree", decoding="scd:window=16,coupling=maximal,tree=2x3"
    ),
    ImageMethod("scd-gumbel-32-tree", "SCD gumbel 32 + tree", decoding="scd:tree=3x4"),
    ImageMethod("scd-maximal-32-tree", "SCD maximal 32 + tree", decoding="scd:coupling=maximal,tree=3x4"),
    ImageMethod("scd-gumbel-32-kseq", "SCD gumbel 32 + tree, K-SEQ", decoding="scd:tree=3x4+", rule="kseq", at=SAMPLED),
    ImageMethod("scd-gumbel-32-rows", "SCD gumbel 32 + row below", decoding="rows"),
    ImageMethod("pac-64", "SJD-PAC 64", decoding="pac"),
)
_EAGLE = (
    ImageMethod("eagle-chain", "EAGLE chain, block", decoding="eagle:chain=5", part="eagle"),
    ImageMethod("eagle-tree", "EAGLE tree, traversal", decoding="eagle:nodes=24,depth=4", part="eagle"),
    ImageMethod(
        "eagle-kseq",
        "EAGLE tree, K-SEQ",
        decoding="eagle:nodes=24,depth=4,drawn=with_replacement",
        rule="kseq",
        at=SAMPLED,
        part="eagle",
    ),
)

# drafts that a relaxed rule judges: name -> (title, text)
_DRAFTS = {
    "sjd": ("SJD 32", "sjd:window=32"),
    "scd": ("SCD gumbel 32", "scd"),
    "scd-64": ("SCD gumbel 64", "scd:window=64"),
    "eagle": ("EAGLE tree", "eagle:nodes=24,depth=4"),
}
# relaxed decodings that leave raster order -> (title, text without its knob, knob, values from nearly exact to loose, the
# value in tables, the required part)
_ORDERED = {
    "zipar": ("ZipAR", "zipar", "window", (12, 8, 6, 4, 2), 8, ""),
    "zipar-adaptive": ("ZipAR adaptive", "zipar:adaptive=true", "window", (12, 8, 6, 4, 2), 4, ""),
    "pjd": ("PJD", "pjd", "context", (12, 8, 6, 4, 2), 8, ""),
    "mulo": ("MuLo-SD", "mulo", "threshold", (0.2, 0.1, 0.05, 0.02, 0.005), 0.05, "low"),
    "mulo-learned": ("MuLo-SD, learned", "mulo:upsampler=learned", "threshold", (0.2, 0.1, 0.05, 0.02, 0.005), 0.05,
                     "upsampler"),
}  # fmt: skip


def _relaxed(rule: MethodInfo, drafts: str, *, swept: bool) -> tuple[ImageMethod, ...]:
    """Return the rows of a relaxed rule over a kind of drafts, at the values of its knob if it has a knob."""
    below, decoding = _DRAFTS[drafts]
    family, others = f"{drafts}-{rule.name}", rule.facts.get("bench", {})
    part = "eagle" if drafts == "eagle" else ""
    if "knob" not in rule.facts:
        shown = ImageMethod(family, f"{rule.title} on {below}", rule.name, family, SAMPLED, part, decoding=decoding)
        return (shown,)
    knob, rows = rule.facts["knob"], []
    for value in rule.facts["knob_values"] if swept else (rule.facts["knob_shown"],):
        text = ",".join(f"{name}={number:g}" for name, number in {knob: value, **others}.items())
        name = f"{rule.title} on {below}, {knob} {value:g}"
        rows.append(
            ImageMethod(
                f"{family}-{value:g}", name, f"{rule.name}:{text}", family, SAMPLED, part, decoding=decoding, knob=value
            )
        )
    return tuple(rows)


def _judged(*, swept: bool) -> tuple[ImageMethod, ...]:
    rules = (method for method in methods("image", "rule", exact=False) if method.facts.get("benched", True))
    return tuple(row for rule in rules for drafts in _DRAFTS for row in _relaxed(rule, drafts, swept=swept))


def _ordered(*, swept: bool) -> tuple[ImageMethod, ...]:
    """Return the decodings that leave raster order: a single row each, or their knobs."""
    rows = []
    for family, (title, text, knob, values, shown, part) in _ORDERED.items():
        for value in values if swept else (shown,):
            decoding = f"{text}{',' if ':' in text else ':'}{knob}={value}"
            rows.append(
                ImageMethod(
                    f"{family}-{value}",
                    f"{title}, {knob} {value}",
                    "exact",
                    family,
                    SAMPLED,
                    part,
                    decoding=decoding,
                    knob=value,
                )
            )
    return tuple(rows)


_ALL = (_AR, _AUTO, *_SJD, *_SCD, *_EAGLE, *_judged(swept=False), *_ordered(swept=False))
_EXACT_FEW = (
    "sjd-16", "sjd-32", "scd-gumbel-32", "scd-gumbel-64", "scd-maximal-32", "scd-gumbel-32-tree", "eagle-tree",
)  # fmt: skip

SUITES: dict[str, ImageSuite] = {
    "all": ImageSuite(
        about="speed and quality of every method",
        title="Images: speed and quality",
        methods=_ALL,
        judged=True,
        columns=(*TIMED, *_JUDGED, "identical"),
        temperatures=(1.0, 0.0),
    ),
    "speed": ImageSuite(
        about="every method timed beside plain decoding",
        title="Images: speed",
        methods=_ALL,
        columns=(*TIMED, "identical"),
        temperatures=(1.0, 0.0),
    ),
    "quality": ImageSuite(
        about="images of every method against plain decoding's",
        title="Images: quality",
        methods=_ALL,
        timed=False,
        judged=True,
        columns=("method", "output", "passes", "step compression", *_JUDGED),
    ),
    "pareto": ImageSuite(
        about="every relaxed rule's knob against the exact methods",
        title="Images: relaxed rules",
        methods=(_AR, *(row for row in _ALL if row.key in _EXACT_FEW), *_judged(swept=True), *_ordered(swept=True)),
        timed=False,
        judged=True,
        columns=("method", "output", "knob", "passes", "step compression", *_JUDGED),
        guidance=(4.0,),
        top_k=(0,),
        plot=True,
    ),
    "families": FAMILIES,
}

# the default (decoding, rule) pairs of a sweep
SWEPT = (
    ("ar", ""),
    ("sjd:window=32", ""),
    ("scd:window=32", ""),
    ("eagle", ""),
    *(("sjd:window=32", f"lantern:delta={delta},k=64") for delta in (0.05, 0.2, 0.4)),
    ("scd:window=32", "gsd:group=14"),
    ("zipar:window=8", ""),
)
