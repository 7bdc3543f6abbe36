"""Conversations: what earlier turns left of a prompt is kept, and a later turn reads only what is new."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {"Past": "mmspec.vlm.conversation.past", "Session": "mmspec.vlm.conversation.session"}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
