"""Speculative Jacobi decoding: the target drafts for itself, over a window of values it keeps scoring."""

from __future__ import annotations

from mmspec.imagegen.jacobi.drafter import SJD
from mmspec.imagegen.jacobi.tree import Proactive

__all__ = ["SJD", "Proactive"]
