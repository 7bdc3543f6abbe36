"""The drafters of text tokens as a public module: `from mmspec.drafters import PromptLookup`."""

from __future__ import annotations

from mmspec._lazy import lazy
from mmspec.vlm.drafters import __all__ as _names

__all__ = list(_names)
__getattr__, __dir__ = lazy(globals(), dict.fromkeys(_names, "mmspec.vlm.drafters"))
