"""Decoding by rows: several rows are open at a time (relaxed), or draft for exact decoding in raster order."""

from __future__ import annotations

from mmspec.imagegen.rowwise.row_drafts import RowDrafts
from mmspec.imagegen.rowwise.row_parallel import PJD, ZipAR

__all__ = ["PJD", "RowDrafts", "ZipAR"]
