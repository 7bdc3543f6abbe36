"""The suite `families` of images: systems of the field beside the nearest method of the house, at equal nodes."""

from __future__ import annotations

from typing import Any

from mmspec.evaluate.engine.suite import GREEDY, PLAIN, SAMPLED
from mmspec.evaluate.image.methods import TIMED, ImageMethod, ImageSuite

_NODES = 24
_FIXED, _WIDE = f"eagle:nodes={_NODES},depth=4", f"eagle:nodes={_NODES},depth=3,tree=wide"
_HEAP, _DYNAMIC = f"eagle:nodes={_NODES},depth=4,tree=heap", f"eagle:nodes={_NODES},depth=4,tree=dynamic"
_LANTERN = "lantern:delta=0.1"
# the entropy of image codes is 4 to 7 nats, and an accepted share of 0.9 is out of reach
_ENTROPY = "eagle:length=(entropy:scale=none,goal=0.5,threshold=0.3)"


def _eagle(key: str, words: str, decoding: str, **more: Any) -> ImageMethod:
    """Return a row of the trained drafter."""
    return ImageMethod(f"eagle-{key}", f"EAGLE, {words}", part="eagle", decoding=decoding, **more)


_DRAFTED = (
    _eagle("chain", "chain of 5", "eagle:chain=5"),
    _eagle("confidence", "confidence stop", "eagle:length=(confidence:threshold=0.2,longest=8)"),
    _eagle("entropy", "AdaEDL, fitted scale", _ENTROPY),
    _eagle("deep", "fixed tree of 24, 4 levels", _FIXED),
    _eagle("wide", "fixed tree of 24, 3 levels", _WIDE, at=SAMPLED),
    _eagle("dyspec", "DySpec's tree of 24", _HEAP, at=SAMPLED),
    _eagle("dynamic", "dynamic tree of 24", _DYNAMIC, at=GREEDY),
    _eagle("ddd", "dynamic tree of 24, Dynamic Depth", f"{_DYNAMIC},stop=0.2", at=GREEDY),
)
# relaxed: the same drafts under LANTERN
_BORROWING = tuple(
    _eagle(f"{key}-lantern", f"{words}, LANTERN", decoding, rule=_LANTERN, at=SAMPLED)
    for key, words, decoding in (
        ("chain", "chain of 5", "eagle:chain=5"),
        ("deep", "fixed tree of 24, 4 levels", _FIXED),
        ("wide", "fixed tree of 24, 3 levels", _WIDE),
        ("dyspec", "DySpec's tree of 24", _HEAP),
    )
)
_UNTRAINED = (
    ImageMethod("sjd-16", "SJD 16", decoding="sjd:window=16"),
    ImageMethod("scd-8", "SCD gumbel 8", decoding="scd:window=8"),
)

FAMILIES = ImageSuite(
    about="systems of the field beside the nearest method of the house: trees, stops, memories, relaxed rules",
    title="Images: families of systems",
    methods=(ImageMethod(PLAIN, "plain AR"), *_UNTRAINED, *_DRAFTED, *_BORROWING),
    columns=(*TIMED, "identical"),
    prompts=8,
    batches=(1,),
    temperatures=(1.0, 0.0),
    guidance=(4.0,),
    top_k=(0,),
    pictures=4,
)
