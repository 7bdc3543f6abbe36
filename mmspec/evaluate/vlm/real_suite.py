"""The suite `real`: a text model on prompts of nine kinds, written by hand and in none of the training sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from mmspec.core.drafting.shapes import DynamicTree
from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.vlm.methods import VlmMethod, VlmSuite
from mmspec.evaluate.vlm.requests import VlmPrompt, VlmTask
from mmspec.evaluate.vlm.resources import SMOLLM2
from mmspec.evaluate.vlm.variants import both, chained, shaped, with_lookup
from mmspec.io.readers import read_json
from mmspec.zoo.world.instructions import INSTRUCTION_KINDS, InstructionKind

NEW_TOKENS, PROMPTS = 128, 8  # prompts of every kind
KINDS = INSTRUCTION_KINDS
_FILE = Path(__file__).with_name("real_prompts.json")


@cache
def prompts_by_kind() -> dict[InstructionKind, tuple[VlmPrompt, ...]]:
    """All prompts of the suite, by kind."""
    records = read_json(_FILE)
    return {kind: tuple(_prompt(record) for record in records[kind]) for kind in KINDS}


def _prompt(record: dict) -> VlmPrompt:
    history = tuple((role, text) for role, text in record.get("history", ()))
    return VlmPrompt(record["text"], history=history)


def real_prompts(count: int, seed: int = 0, *, kind: InstructionKind) -> Sequence[VlmPrompt]:
    """The first prompts of a kind.

    Args:
        count: How many.
        seed: Ignored, since the prompts are fixed: it decides the draws of sampled rows alone.
        kind: The kind of request.

    Returns:
        `count` prompts.

    Raises:
        ValueError: for more prompts than the suite has.
    """
    known = prompts_by_kind()[kind]
    if not 1 <= count <= len(known):
        raise ValueError(f"--prompts: expected 1 to {len(known)} of a kind, got {count}, change it")
    return known[:count]


def evaluation_prompts(count: int, seed: int = 0) -> list[EvaluationPrompt]:
    """The prompts of a sweep, in turns over the kinds, so that the first few show many kinds.

    The answers to earlier turns are the model's own in sweeps, so that only the user's turns are kept.

    Args:
        count: How many; there are no more than all.
        seed: Where to begin.

    Returns:
        The prompts, whose category is their kind.
    """
    by_kind = prompts_by_kind()
    mixed = [(kind, number, by_kind[kind][number]) for number in range(PROMPTS) for kind in KINDS]
    first = seed * count % len(mixed)
    return [
        EvaluationPrompt(f"{kind}-{number}", (*_users_turns(prompt), prompt.text), category=kind)
        for kind, number, prompt in (mixed[first:] + mixed[:first])[:count]
    ]


def _users_turns(prompt: VlmPrompt) -> tuple[str, ...]:
    return tuple(text for role, text in prompt.history if role == "user")


TASKS = tuple(VlmTask(kind, partial(real_prompts, kind=kind), NEW_TOKENS, pictures=0, most=PROMPTS) for kind in KINDS)


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
    drafters=("smollm2-eagle3",),
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
