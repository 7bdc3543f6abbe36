"""The round that every domain shares: drafts, rules, random keys, the cache, the loop and length control."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {
    "cache": ("SlotCache",),
    "draft": ("Draft", "Evidence", "Law", "Verdict", "root_only", "run_of"),
    "goodput": ("Goodput",),
    "keys": ("Keys", "Purpose"),
    "length": ("ConfidenceStop", "FixedLength"),
    "loop": ("DecodingRun", "Memoryless"),
    "pool": ("SlotPool",),
    "rules": ("Rule", "Weights", "resolve"),
    "stats": ("Stats",),
    "tree": ("Tree", "chain", "chains", "dynamic_tree", "static_tree"),
}
_HOME = {name: f"mmspec.core.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(globals(), _HOME)
