"""The suites of `mmspec bench vlm` as data: the methods and tasks of each, and the columns of its tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mmspec.core.drafting.shapes import DynamicTree, StaticTree
from mmspec.core.length.controls import ConfidenceStop
from mmspec.evaluate.engine.suite import GREEDY, SAMPLED
from mmspec.evaluate.vlm.categories import CATEGORIES
from mmspec.evaluate.vlm.families import FAMILIES
from mmspec.evaluate.vlm.methods import (
    COMMON,
    HEAD,
    DrafterChange,
    VlmMethod,
    VlmSuite,
    blocks,
    both,
    chained,
    shaped,
    whole_layer,
    with_acceptance_head,
    with_goodput,
    with_lookup,
    with_vision_skip,
)
from mmspec.evaluate.vlm.requests import (
    ALBUMS,
    CAPTIONS,
    DOCUMENTS,
    ENDLESS,
    ONE_WORD,
    QUESTIONS,
    REAL_COUNT,
    REAL_TASKS,
)
from mmspec.run.vlm_models import HYBRID, SMOLLM2

LONGEST = 12
FIXED = (1, 2, 3, 4, 5, 7, 9, LONGEST)  # chain lengths that the controller is compared with
TRAINED = (
    "eagle", "eagle_text", "msd", "vispec", "flash", "specvlm", "eagle3", "dflash", "dflash_vision", "dspark",
    "hydra", "medusa",
)  # fmt: skip
# the default drafters of `mmspec evaluate`, of which a model uses those that it has
SWEPT = (
    "smollm2-eagle3", "hybrid-dflash", "hybrid-mtp", "eagle", "msd", "dspark", "vispec", "flash", "small", "lookup",
    "recycling",
)  # fmt: skip
_COSTS = ("prefill ms", "step ms", "round ms", "rows")


def _as_it_is(name: str, title: str) -> tuple[VlmMethod, ...]:
    return (VlmMethod(name, title, drafter=name, rivals=name),)


def _block_rows(name: str, title: str) -> tuple[VlmMethod, ...]:
    changes = {count: both(chained(8), blocks(count)) for count in range(1, 6)}
    return tuple(
        VlmMethod(f"{name}-{count}", f"{title}, {count} a pass", drafter=name, change=change, point=count)
        for count, change in changes.items()
    )


def _length_rows(name: str, title: str) -> tuple[VlmMethod, ...]:
    shared = {"drafter": name, "rivals": name}
    fixed = [
        VlmMethod(f"{name}-{length}", f"{title}, chain of {length}", change=chained(length), point=length, **shared)
        for length in FIXED
    ]
    return (*fixed, _goodput(name, title))


def _goodput(name: str, title: str) -> VlmMethod:
    """Return the row of the controller over chains up to the longest fixed length."""
    change = both(chained(LONGEST), with_goodput)
    return VlmMethod(f"{name}-goodput", f"{title}, goodput", drafter=name, change=change, rivals=name, controlled=True)


_EAGLE, _BEST, _BLOCK = "eagle", "dspark", "dflash_vision"
_AUTO = VlmMethod("auto", "auto", drafter="auto", rivals=_BEST, controlled=True)
_HF_LOOKUP = VlmMethod(
    "hf-lookup", "transformers prompt lookup", engine="transformers", options={"prompt_lookup_num_tokens": 10}
)
_UNTRAINED = (
    VlmMethod("lookup", "prompt lookup", drafter="lookup"),
    VlmMethod("recycling", "Token Recycling", drafter="recycling"),
    VlmMethod("small", "small model chain", drafter="small"),
)
_ENGINE = (
    _HF_LOOKUP,
    VlmMethod(
        "hf-assisted",
        "transformers assisted",
        engine="transformers",
        options={"assistant_model": lambda resources: resources.zoo_part("vlm/small")[0]},
    ),
    VlmMethod("eagle", "EAGLE dynamic tree", drafter=_EAGLE, change=shaped(DynamicTree())),
    VlmMethod("eagle-static", "EAGLE static tree", drafter=_EAGLE, change=shaped(StaticTree()), at=GREEDY),
    VlmMethod("eagle-chain", "EAGLE chain", drafter=_EAGLE, change=chained(7), at=GREEDY),
    *(
        VlmMethod(
            f"eagle-{rule}",
            f"EAGLE sampled tree, {title}",
            rule,
            "",
            SAMPLED,
            drafter=_EAGLE,
            change=shaped(StaticTree()),
        )
        for rule, title in (("traversal", "traversal"), ("recursive", "recursive"), ("match", "target-match"))
    ),
    VlmMethod("eagle-block", "EAGLE sampled chain, block", drafter=_EAGLE, change=chained(7), rule="block", at=SAMPLED),
    *_UNTRAINED,
    _AUTO,
)
_SHAPED = (
    VlmMethod("eagle-tree", "EAGLE dynamic tree", drafter=_EAGLE, change=shaped(DynamicTree())),
    VlmMethod(
        "eagle-confidence", "EAGLE, confidence stop", drafter=_EAGLE, change=chained(ConfidenceStop(longest=LONGEST))
    ),
    VlmMethod("eagle-specdecpp", "EAGLE, SpecDec++", drafter=_EAGLE, change=with_acceptance_head(LONGEST), part=HEAD),
    VlmMethod("msd-viskip", "MSD, ViSkip", drafter="msd", change=with_vision_skip),
    VlmMethod(
        "dflash_vision-tree",
        "DFlash with vision, likeliest prefixes",
        drafter=_BLOCK,
        change=shaped(DynamicTree(nodes=16, depth=11, width=4)),
    ),
    _goodput(_EAGLE, "EAGLE"),
    _goodput("msd", "MSD"),
    _goodput(_BLOCK, "DFlash with vision"),
    _goodput("dspark", "DSpark with vision"),
    _AUTO,
    *_as_it_is("random", "untrained EAGLE"),
    _goodput("random", "untrained EAGLE"),
)
_STRICT_PLAIN = VlmMethod("plain-strict", "mmspec plain, strict", strict=True)


def _two_ways(way: str, **changed: Any) -> Callable[[str, str], tuple[VlmMethod, ...]]:
    """Return the rows of a drafter as chain and tree, each both unchanged and with the changes called `way`."""
    shapes = {"chain": ("chain of 7", chained(7)), "tree": ("dynamic tree", shaped(DynamicTree()))}

    def rows(name: str, title: str) -> tuple[VlmMethod, ...]:
        methods = []
        for shape, (words, change) in shapes.items():
            one = VlmMethod(f"{name}-{shape}", f"{title}, {words}", drafter=name, change=change)
            methods += [one, replace(one, key=f"{one.key}-{way}", title=f"{one.title}, {way}", **changed)]
        return tuple(methods)

    return rows


def _hybrid_rows(name: str, title: str) -> tuple[VlmMethod, ...]:
    """Return the rows of a drafter of the hybrid: its own shape, and a tree, which passes recurrent layers too."""
    short = name.removeprefix("hybrid-")
    tree = VlmMethod(f"{short}-tree", f"{title} dynamic tree", drafter=name, change=shaped(DynamicTree()))
    return (VlmMethod(short, title, drafter=name), tree)


CHAINS = (2, 3, 4, 6)
TREES = {
    nodes: DynamicTree(nodes=nodes, depth=depth, width=width)
    for nodes, depth, width in (
        (8, 4, 2),
        (16, 5, 3),
        (24, 6, 4),
        (32, 7, 4),
    )
}
_WIDELY_CHAIN, _WIDELY_TREE = 4, 16  # the shapes that sampled requests and batches of `real` use too
_RIVALS = {"rivals": "real"}


def _real_rows(name: str, title: str) -> tuple[VlmMethod, ...]:
    """Return the chains and trees of a trained drafter, alone and merged with prompt lookup."""
    short = name.removeprefix(f"{SMOLLM2}-")

    def row(key: str, words: str, change: DrafterChange, point: int, is_wide: bool) -> VlmMethod:
        return VlmMethod(
            f"{short}-{key}",
            f"{title}{words}",
            family=short,
            drafter=name,
            change=change,
            point=point,
            widely=is_wide,
            **_RIVALS,
        )

    chains = {n: row(f"chain-{n}", f", chain of {n}", chained(n), n, n == _WIDELY_CHAIN) for n in CHAINS}
    trees = [row(f"tree-{n}", f", tree of {n}", shaped(tree), n, n == _WIDELY_TREE) for n, tree in TREES.items()]
    merged = [
        row(f"both-{kind}-{n}", f" + prompt lookup, {kind} of {n}", both(shape, with_lookup), n, n == _WIDELY_CHAIN)
        for kind, n, shape in (("chain", 3, chained(3)), ("chain", 4, chained(4)), ("tree", 16, shaped(TREES[16])))
    ]
    chain = chains[_WIDELY_CHAIN]
    strict = replace(
        chain,
        key=f"{chain.key}-strict",
        title=f"{chain.title}, strict",
        widely=False,
        strict=True,
        like=_STRICT_PLAIN.key,
        rivals="",
    )
    return (*chains.values(), *trees, *merged, strict)


REAL = VlmSuite(
    about="a text model on real prompts of nine kinds, with and without trained drafters",
    title="Text: real prompts",
    tasks=REAL_TASKS,
    methods=(
        replace(_HF_LOOKUP, largest_batch=1, widely=True),
        _STRICT_PLAIN,
        *(replace(row, widely=True, **_RIVALS) for row in (*_UNTRAINED[:2], _AUTO)),
    ),
    each=_real_rows,
    drafters=("smollm2-eagle3",),
    prompts=REAL_COUNT,
    columns=(
        *COMMON,
        "x total time",
        "x decoding (10-90 %)",
        "draft + target + verify share",
        "peak MB",
        "identical",
        "batch as alone",
    ),
    model=SMOLLM2,
    united="all kinds",
    narrowed=True,
    curve=True,
    alone=True,
)

SUITES: dict[str, VlmSuite] = {
    "real": REAL,
    "methods": VlmSuite(
        about="rules, shapes and drafters without training, on texts that never end",
        title="Text: rules and shapes",
        tasks=(ENDLESS,),
        methods=_ENGINE,
        columns=(*COMMON, "ms a round: draft + target + verify + other", "verify share", "identical"),
    ),
    "drafters": VlmSuite(
        about="every trained drafter, captions and questions",
        title="Text: trained drafters",
        tasks=(CAPTIONS, QUESTIONS),
        methods=_SHAPED,
        each=_as_it_is,
        drafters=TRAINED,
        columns=(*COMMON, "drafter passes a token", *_COSTS, "parameters", "training s", "identical"),
        measured=True,
        reference="eagle_text",
    ),
    "pictures": VlmSuite(
        about="drafters on prompts of 1, 4, 8 and 16 pictures",
        title="Text: several pictures",
        tasks=ALBUMS,
        methods=(VlmMethod("msd-whole", "MSD, whole layer over the prompt", drafter="msd", change=whole_layer), _AUTO),
        each=_as_it_is,
        drafters=TRAINED,
        prompts=9,
        batches=(1,),
        temperatures=(0.0,),
        columns=(*COMMON, *_COSTS, "cost of MSD's", "accept length of MSD's", "identical"),
        measured=True,
        reference="msd",
        plot=("pictures", ("accept_length", "speedup_vs_ar")),
    ),
    "blocks": VlmSuite(
        about="several tokens a drafter pass",
        title="Text: tokens per drafter pass",
        tasks=(CAPTIONS, QUESTIONS),
        each=_block_rows,
        drafters=("flash",),
        batches=(1,),
        columns=(*COMMON, "drafter passes a token", "step ms", "round ms", "identical"),
        measured=True,
        plot=("point", ("accept_length", "speedup_vs_ar")),
    ),
    "hybrid": VlmSuite(
        about="a target of gated delta and full attention layers: captions, questions and transcribed documents",
        title="Text: recurrent layers and documents",
        tasks=(CAPTIONS, QUESTIONS, DOCUMENTS),
        methods=_UNTRAINED[:2],
        each=_hybrid_rows,
        drafters=("hybrid-dflash", "hybrid-mtp"),
        columns=(*COMMON, "drafter passes a token", "parameters", "training s", "identical"),
        model=HYBRID,
    ),
    "lengths": VlmSuite(
        about="the goodput controller against every fixed length",
        title="Text: draft lengths",
        tasks=(CAPTIONS, QUESTIONS, ONE_WORD),
        methods=(_AUTO,),
        each=_length_rows,
        drafters=("eagle", "weak", "random"),
        prompts=12,
        columns=(*COMMON, "best fixed", "x best fixed (10-90 %)", "identical"),
        plot=("point", ("accept_length", "speedup_vs_ar")),
    ),
    "categories": VlmSuite(
        about="requests by category, picked to be unlike each other, and accept length by depth; random words are the control",
        title="Text: categories",
        tasks=CATEGORIES,
        methods=_UNTRAINED[:1],
        each=_as_it_is,
        drafters=("eagle", "msd", "dspark"),
        prompts=40,
        batches=(1,),
        columns=(*COMMON, "accept by depth", "identical"),
    ),
    "families": FAMILIES,
    "strict": VlmSuite(
        about="what the bits of single passes cost; strict rows are compared with plain decoding of their kind",
        title="Text: strict passes",
        tasks=(CAPTIONS,),
        methods=(_STRICT_PLAIN,),
        each=_two_ways("strict", strict=True, like=_STRICT_PLAIN.key),
        drafters=("msd",),
        temperatures=(0.0,),
        columns=(*COMMON, "ms a round: draft + target + verify + other", "identical"),
    ),
    "captured": VlmSuite(
        about="rounds without the host beside ordinary ones: what they cost where nothing is recorded",
        title="Text: captured rounds",
        tasks=(CAPTIONS,),
        methods=(VlmMethod("plain-captured", "mmspec plain, captured", captured=True),),
        each=_two_ways("captured", captured=True),
        drafters=("msd",),
        columns=(*COMMON, "ms a round: draft + target + verify + other", "identical"),
    ),
}
