"""Draft lengths: fixed lengths, stops and the controllers that measure."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {
    "controls": ("ConfidenceStop", "FixedLength", "LengthControl", "RequestControl"),
    "entropy_stop": ("AdaptiveEntropyStop", "EntropyStop"),
    "goodput": ("Goodput",),
    "node_budget": ("BatchBudget",),
}
_HOME = {name: f"mmspec.core.length.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(globals(), _HOME)
