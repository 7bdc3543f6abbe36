"""Drafters of text tokens. A drafter holds settings and weights; its `open` returns the state of a request."""

from __future__ import annotations

from mmspec._lazy import lazy
from mmspec.methods import methods

_PUBLIC = {
    "AcceptanceHead": "mmspec.vlm.drafters.specdecpp",
    "AcceptanceStop": "mmspec.vlm.drafters.specdecpp",
    "BestFirst": "mmspec.core.drafting.heap",
    "Cascade": "mmspec.vlm.drafters.cascade",
    "Chain": "mmspec.core.drafting.shapes",
    "DynamicExit": "mmspec.vlm.drafters.exit_control",
    "DynamicTree": "mmspec.core.drafting.shapes",
    "Goodput": "mmspec.core.length.goodput",
    "LayerSet": "mmspec.vlm.drafters.layer_search",
    "LikelyNodes": "mmspec.vlm.drafters.node_score",
    "Merged": "mmspec.vlm.drafters.merged",
    "RecyclingTable": "mmspec.vlm.drafters.token_recycling",
    "LawTable": "mmspec.vlm.drafters.ngram_laws",
    "SmallModel": "mmspec.vlm.drafters.small_model",
    "StaticTree": "mmspec.core.drafting.shapes",
    "SuffixIndex": "mmspec.vlm.drafters.suffix_lookup",
    "VisionSkip": "mmspec.vlm.drafters.viskip",
}
_METHODS = ("vlm", "drafter")  # the classes of these methods are public too
_CLASSES = dict(info.home.split(":")[::-1] for info in methods(*_METHODS) if info.home.startswith(__name__))
_HOMES = _PUBLIC | {name: home for name, home in _CLASSES.items() if name[0].isupper()}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy(globals(), _HOMES)
