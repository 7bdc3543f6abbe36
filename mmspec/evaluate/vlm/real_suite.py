"""The suite `real`: a text model on real prompts, with and without trained drafters."""

from __future__ import annotations

from dataclasses import replace

from mmspec.core.drafting.shapes import DynamicTree
from mmspec.evaluate.vlm.methods import VlmMethod
from mmspec.evaluate.vlm.real_prompts import TASKS
from mmspec.evaluate.vlm.resources import SMOLLM2
from mmspec.evaluate.vlm.suite import VlmSuite
from mmspec.evaluate.vlm.variants import both, chained, shaped, with_lookup

CHAINS = (2, 3, 4, 6)
TREES = (
    DynamicTree(nodes=8, depth=4, width=2),
    DynamicTree(nodes=16, depth=5, width=3),
    DynamicTree(nodes=24, depth=6, width=4),
    DynamicTree(nodes=32, depth=7, width=4),
)
_WIDELY_CHAIN, _WIDELY_TREE = 4, 16  # the shapes that sampled requests and batches are measured with too
_RIVALS = "real"


def _shaped_rows(name: str, title: str) -> tuple[VlmMethod, ...]:
    """Chains and trees of one trained drafter."""
    short = name.removeprefix(f"{SMOLLM2}-")
    shared = {"drafter": name, "rivals": _RIVALS}
    chains = [
        VlmMethod(
            f"{short}-chain-{length}",
            f"{title}, chain of {length}",
            family=short,
            change=chained(length),
            point=length,
            widely=length == _WIDELY_CHAIN,
            **shared,
        )
        for length in CHAINS
    ]
    trees = [
        VlmMethod(
            f"{short}-tree-{tree.nodes}",
            f"{title}, tree of {tree.nodes}",
            family=short,
            change=shaped(tree),
            point=tree.nodes,
            widely=tree.nodes == _WIDELY_TREE,
            **shared,
        )
        for tree in TREES
    ]
    merged = [
        VlmMethod(
            f"{short}-both-{label}",
            f"{title} + prompt lookup, {words}",
            family=short,
            change=both(shape, with_lookup),
            point=point,
            widely=point == _WIDELY_CHAIN,
            **shared,
        )
        for label, words, shape, point in (
            ("chain-3", "chain of 3", chained(3), 3),
            ("chain-4", "chain of 4", chained(4), 4),
            ("tree-16", "tree of 16", shaped(TREES[1]), 16),
        )
    ]
    chain = chains[CHAINS.index(_WIDELY_CHAIN)]
    strict = replace(chain, key=f"{chain.key}-strict", title=f"{chain.title}, strict", widely=False,
                     strict=True, like="plain-strict", rivals="")  # fmt: skip
    return (*chains, *trees, *merged, strict)


_FREE = (
    VlmMethod(
        "hf-lookup",
        "transformers prompt lookup",
        engine="transformers",
        options={"prompt_lookup_num_tokens": 10},
        largest_batch=1,
        widely=True,
    ),
    VlmMethod("plain-strict", "mmspec plain, strict", strict=True),
    VlmMethod("lookup", "prompt lookup", drafter="lookup", rivals=_RIVALS, widely=True),
    VlmMethod("recycling", "Token Recycling", drafter="recycling", rivals=_RIVALS, widely=True),
    VlmMethod("auto", "auto", drafter="auto", rivals=_RIVALS, controlled=True, widely=True),
)

REAL = VlmSuite(
    about="a text model on real prompts of nine kinds, with and without trained drafters",
    tasks=TASKS,
    methods=_FREE,
    each=_shaped_rows,
    drafters=("smollm2-eagle3", "smollm2-dspark"),
    prompts=8,
    columns=(
        "method",
        "law",
        "passes",
        "accept length",
        "seconds",
        "x plain (10-90 %)",
        "x transformers (10-90 %)",
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
