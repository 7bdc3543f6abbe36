"""The suite `families`: systems of the field beside the nearest method of the house, at equal nodes where both draft trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mmspec import drafters
from mmspec.core.drafting.heap import BestFirst
from mmspec.core.drafting.shapes import HIT_RATES, Chain, DynamicTree, StaticTree, likeliest_tree
from mmspec.core.length.controls import ConfidenceStop
from mmspec.core.length.entropy_stop import EntropyStop
from mmspec.evaluate.engine.observed_drafter import SharedMemory, sharing
from mmspec.evaluate.engine.suite import GREEDY, SAMPLED
from mmspec.evaluate.vlm.documents import DOCUMENT_REQUESTS, PAGES_AGAIN
from mmspec.evaluate.vlm.methods import COMMON, DrafterChange, VlmMethod, VlmSuite, both, chained, shaped, with_lookup
from mmspec.evaluate.vlm.requests import CAPTIONS, QUESTIONS, REAL_COUNT, REAL_TASKS, VlmTask, held_out, real_prompts
from mmspec.run.vlm_requests import VlmPrompt
from mmspec.vlm.drafters.graft import Graft
from mmspec.vlm.drafters.merged import Merged, retrieval_of
from mmspec.vlm.drafters.rasd import Fused
from mmspec.vlm.drafters.token_recycling import HIT_RATES as TABLE_RATES

ANSWERS = 4  # answers to each picture
_SEVERAL = "several answers"
_KINDS = ("chat", "story", "editing")  # of the real prompts, for models without pictures
_MOST = ANSWERS * REAL_COUNT
_NODES, _DEPTH = 16, 7
_JUDGED = 8  # the tokens of chains that relaxed rules judge
# the rates at which a child of rank 0, 1, ... is accepted: 16 nodes reach seven levels, or spread over four
_DEEP_RATES, _FLAT_RATES = HIT_RATES, (0.4, 0.2, 0.12, 0.08)


def several_answers(make: Callable[[int, int], Sequence[VlmPrompt]], count: int, seed: int = 0) -> Sequence[VlmPrompt]:
    """Return `count` requests, `ANSWERS` in a row for every request of `make`, a function of (count, seed)."""
    requests = make(-(-count // ANSWERS), seed)
    return [requests[index // ANSWERS] for index in range(count)]


def _sharing_answers(make: Callable[..., Any]) -> DrafterChange:
    """Return a change that wraps a trained drafter with copies from the answers of all requests."""
    return lambda drafter: SharedMemory(
        make(drafter, retrieval_of("suffix")), make(drafter, retrieval_of("suffix", drafters.SuffixIndex()))
    )


def _sharing_candidates(drafter: Any) -> Any:
    """Wrap a trained drafter by Graft with a table of all requests."""
    table = drafters.RecyclingTable(len(TABLE_RATES))
    return SharedMemory(Graft(drafter, nodes=_NODES), Graft(drafter, table, nodes=_NODES))


def _over(make: Callable[..., Any], **settings: Any) -> DrafterChange:
    return lambda drafter: make(drafter, **settings)


def _memory(name: str, title: str, field: str, table: Callable[[], Any]) -> tuple[VlmMethod, VlmMethod]:
    """Return the rows of a drafter with a memory: a new memory a request, and one for all requests."""
    alone = VlmMethod(name, title, drafter=name)
    shared = replace(alone, key=f"{name}-shared", title=f"{title}, shared table", change=sharing(field, table))
    return alone, shared


_UNTRAINED = (
    VlmMethod("lookup", "prompt lookup", drafter="lookup"),
    *_memory("recycling", "Token Recycling", "table", lambda: drafters.RecyclingTable(drafters.TokenRecycling().width)),
    *_memory("stand", "STAND", "table", drafters.LawTable),
    *_memory("aded", "ADED", "table", lambda: drafters.LawTable(2, 2)),
    *_memory("suffix", "suffix lookup", "index", drafters.SuffixIndex),
    VlmMethod("swift", "SWIFT", drafter="swift"),
    VlmMethod("del", "DEL", drafter="del"),
    VlmMethod("quantised", "copy in int8", drafter="quantised"),
    VlmMethod("small", "small model", drafter="small"),
)


def _rows_of(name: str, title: str) -> tuple[VlmMethod, ...]:
    """Return the rows of systems that build on a trained drafter."""
    tree = DynamicTree(_NODES, _DEPTH, 3)
    deep = StaticTree(likeliest_tree(_NODES + 1, _DEPTH, _DEEP_RATES))
    flat = StaticTree(likeliest_tree(_NODES + 1, 4, _FLAT_RATES))

    def row(key: str, words: str, change: DrafterChange, **more: Any) -> VlmMethod:
        return VlmMethod(f"{name}-{key}", f"{title}, {words}", drafter=name, change=change, rivals=name, **more)

    long = chained(_JUDGED)
    rows = (
        row("chain-4", "chain of 4", chained(4)),
        row("confidence", "confidence stop", chained(ConfidenceStop(longest=8))),
        row("entropy", "AdaEDL", shaped(Chain(EntropyStop()))),
        row("tree", "dynamic tree of 16", shaped(tree)),
        row("ddd", "dynamic tree of 16, Dynamic Depth", shaped(replace(tree, stop=((3, 0.3), (5, 0.2)))), at=GREEDY),
        row("flat", "static tree of 16, 4 levels", shaped(flat), at=SAMPLED),
        row("deep", "static tree of 16, 7 levels", shaped(deep), at=SAMPLED),
        row("dyspec", "DySpec's tree of 16", shaped(BestFirst(_NODES, _DEPTH, 3)), at=SAMPLED),
        row("both", "with prompt lookup", both(shaped(tree), with_lookup)),
        row("both-chain-4", "chain of 4 with prompt lookup", both(chained(4), with_lookup)),
        row("both-shared", "chain of 4 with shared suffix lookup", both(chained(4), _sharing_answers(Merged))),
        row("rasd", "RASD", both(shaped(tree), _over(Fused))),
        row("rasd-shared", "RASD, shared suffix lookup", both(shaped(tree), _sharing_answers(Fused))),
        row("graft", "Graft, 16 nodes", both(shaped(tree), _over(Graft, nodes=_NODES))),
        row("graft-shared", "Graft, 16 nodes, shared table", both(shaped(tree), _sharing_candidates)),
        row("chain-8", "chain of 8", long),
        row("chain-8-fuzzy", "chain of 8, fuzzy", long, rule="fuzzy:threshold=0.05", at=SAMPLED),
    )
    judge = row("chain-8-judge", "chain of 8, judge", long, rule="judge:threshold=0.7@zoo:vlm/judge", part="vlm/judge")
    return (*rows, judge) if name == "eagle" else rows


FAMILIES = VlmSuite(
    about="systems of the field beside the nearest method of the house: memories, self-drafters, trees, stops, relaxed rules",
    title="Text: families of systems",
    tasks=(
        CAPTIONS,
        QUESTIONS,
        VlmTask(_SEVERAL, partial(several_answers, held_out), 128),
        PAGES_AGAIN,
        *(task for task in REAL_TASKS if task.name in _KINDS),
        DOCUMENT_REQUESTS,
        VlmTask(_SEVERAL, partial(several_answers, partial(real_prompts, kind="chat")), 128, pictures=0, most=_MOST),
    ),
    methods=_UNTRAINED,
    each=_rows_of,
    drafters=("eagle", "smollm2-eagle3", "hybrid-mtp"),
    prompts=REAL_COUNT,
    batches=(1,),
    columns=(*COMMON, "ms a round: draft + target + verify + other", "identical"),
)
