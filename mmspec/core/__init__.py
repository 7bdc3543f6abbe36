"""The round that every domain shares: drafts, rules, random keys, the cache, the loop and length control."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {
    "length.controls": ("ConfidenceStop", "FixedLength"),
    "length.goodput": ("Goodput",),
    "round.cache": ("SlotCache",),
    "round.draft": ("Draft", "Evidence", "Law", "Verdict", "root_only", "run_of"),
    "round.keys": ("Keys", "Purpose"),
    "round.loop": ("DecodingRun", "Memoryless"),
    "round.pool": ("SlotPool",),
    "round.rules": ("Rule", "Weights", "resolve"),
    "round.stats": ("Stats",),
    "round.tree": ("Tree", "chain", "chains", "dynamic_tree", "static_tree"),
}
_HOME = {name: f"mmspec.core.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(globals(), _HOME)
