"""Conversations: the cache of earlier turns is reused, and a later turn reads only the new part of its prompt."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {"Past": "mmspec.vlm.conversation.past", "Session": "mmspec.vlm.conversation.session"}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
