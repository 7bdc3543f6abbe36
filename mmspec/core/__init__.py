"""What every domain shares: drafts, rules, random keys, the cache and the round loop, handed out on first use."""

from __future__ import annotations

from importlib import import_module

_PUBLIC = {
    "cache": ("SlotCache",),
    "draft": ("Draft", "Law", "root_only"),
    "evidence": ("Evidence",),
    "goodput": ("Goodput",),
    "keys": ("Keys", "Purpose"),
    "length": ("ConfidenceStop", "FixedLength"),
    "loop": ("Decoding", "Memoryless"),
    "pool": ("SlotPool",),
    "rules": ("Rule", "Weights", "resolve"),
    "stats": ("Stats",),
    "tree": ("Tree", "chain", "chains", "dynamic_tree", "static_tree"),
    "verdict": ("Verdict", "run_of"),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'mmspec.core' has no attribute {name!r}")
    value = getattr(import_module(f"mmspec.core.{_HOME[name]}"), name)
    globals()[name] = value
    return value
