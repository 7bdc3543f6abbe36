"""A first look at a model: whether it is supported, the drafters that fit, its memory, and the next command."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {
    "CheckReport": "mmspec.check.report",
    "check": "mmspec.check.examine",
    "report_lines": "mmspec.check.text",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
