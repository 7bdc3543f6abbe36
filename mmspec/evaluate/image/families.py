"""The suite `families` of images: systems of the field beside the nearest method of the house, at equal nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mmspec.core.drafting.heap import BestFirst
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree, likeliest_tree
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.core.length.entropy_stop import EntropyStop
from mmspec.evaluate.engine.observed_drafter import sharing
from mmspec.evaluate.engine.suite import GREEDY, SAMPLED
from mmspec.evaluate.image.methods import TIMED, ImageMethod, ImageSuite
from mmspec.imagegen.eagle.image_eagle import deep_tree
from mmspec.imagegen.grid_memory import GridTable
from mmspec.run.decoding_options import PLAIN

_NODES, _DEPTH = 24, 4
# the rates at which a child of rank 0, 1, ... is accepted: flat rates spread the nodes over three levels
_FLAT_RATES = (0.4, 0.2, 0.12, 0.08, 0.06, 0.05, 0.04, 0.03)
_DYNAMIC = DynamicTree(_NODES, _DEPTH, 4)
# the entropy of image codes is 4 to 7 nats, and nine accepted codes of ten are out of reach
_ENTROPY = EntropyStop(threshold=0.3, goal=0.5, scale=None)
_FUZZY = "fuzzygroups:threshold=0.2"
_CHAIN = ("chain", "chain of 5", Chain(FixedLength(5)))
_TREES = (
    ("deep", "fixed tree of 24, 4 levels", StaticTree(deep_tree(_NODES, _DEPTH))),
    ("wide", "fixed tree of 24, 3 levels", StaticTree(likeliest_tree(_NODES + 1, 3, _FLAT_RATES))),
    ("dyspec", "DySpec's tree of 24", BestFirst(_NODES, _DEPTH, 4)),
)


def _shaped(shape: Shape) -> Callable[[Any], Any]:
    return lambda drafter: drafter.with_shape(shape)


def _eagle(key: str, words: str, shape: Shape, **more: Any) -> ImageMethod:
    return ImageMethod(f"eagle-{key}", f"EAGLE, {words}", part="eagle", decoding="eagle", change=_shaped(shape), **more)


def _lantern(key: str, words: str, shape: Shape) -> ImageMethod:
    """Return the row of the same drafts under LANTERN, which is relaxed."""
    return _eagle(f"{key}-lantern", f"{words}, LANTERN", shape, rule="lantern:delta=0.1", at=SAMPLED)


def _memory(key: str, title: str, width: int) -> tuple[ImageMethod, ImageMethod]:
    """Return the rows of a memory: a new memory a picture, and one for all pictures."""
    alone = ImageMethod(key, title, decoding=f"memory:width={width}")
    change = sharing("table", lambda: GridTable(width))
    return alone, replace(alone, key=f"{key}-shared", title=f"{title}, shared table", change=change)


_DRAFTED = (
    _eagle(*_CHAIN),
    _eagle("confidence", "confidence stop", Chain(ConfidenceStop(0.2))),
    _eagle("entropy", "AdaEDL, fitted scale", Chain(_ENTROPY)),
    *(_eagle(*tree, at=SAMPLED) for tree in _TREES),
    _eagle("dynamic", "dynamic tree of 24", _DYNAMIC, at=GREEDY),
    _eagle("ddd", "dynamic tree of 24, Dynamic Depth", replace(_DYNAMIC, stop=((2, 0.2), (3, 0.2))), at=GREEDY),
    _eagle("chain-fuzzy", "chain of 5, fuzzy", _CHAIN[-1], rule=_FUZZY, at=SAMPLED),
    *(_lantern(*row) for row in (_CHAIN, *_TREES)),
)
_UNTRAINED = (
    ImageMethod("sjd-16", "SJD 16", decoding="sjd:window=16"),
    ImageMethod("scd-8", "SCD gumbel 8", decoding="scd:window=8"),
    *_memory("memory", "grid memory, 64 codes", 64),
    *_memory("memory-10", "grid memory, 10 codes", 10),
    ImageMethod("memory-likeliest", "grid memory, likeliest codes", decoding="memory:drawn=deterministic", at=SAMPLED),
    ImageMethod("scd-8-fuzzy", "SCD gumbel 8, fuzzy", _FUZZY, at=SAMPLED, decoding="scd:window=8"),
)

FAMILIES = ImageSuite(
    about="systems of the field beside the nearest method of the house: trees, stops, memories, relaxed rules",
    title="Images: families of systems",
    methods=(ImageMethod(PLAIN, "plain AR"), *_UNTRAINED, *_DRAFTED),
    columns=(*TIMED, "identical"),
    prompts=8,
    batches=(1,),
    temperatures=(1.0, 0.0),
    guidance=(4.0,),
    top_k=(0,),
    pictures=4,
)
