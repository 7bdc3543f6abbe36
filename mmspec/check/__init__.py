"""The first look at a model: is it taken, which drafters fit, what memory it takes, and what to type next."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {
    "CheckReport": "mmspec.check.report",
    "check": "mmspec.check.examine",
    "report_lines": "mmspec.check.text",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
