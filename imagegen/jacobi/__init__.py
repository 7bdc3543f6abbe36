"""Speculative Jacobi decoding: the target drafts for itself, over a window of values that it rescores every round."""

from __future__ import annotations

from mmspec.imagegen.jacobi.jacobi_drafts import SJD
from mmspec.imagegen.jacobi.tree import Proactive

__all__ = ["SJD", "Proactive"]
