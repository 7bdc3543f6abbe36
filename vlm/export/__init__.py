"""Drafters written the way serving engines read them."""

from __future__ import annotations

from mmspec.vlm.export.sglang import export_sglang
from mmspec.vlm.export.speculators import export_speculators

__all__ = ["export_sglang", "export_speculators"]
