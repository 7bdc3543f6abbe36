"""Decoding by rows: several open at a time (relaxed), or as drafts under exact raster order."""

from __future__ import annotations

from mmspec.imagegen.rowwise.row_drafts import RowDrafts
from mmspec.imagegen.rowwise.row_parallel import PJD, ZipAR

__all__ = ["PJD", "RowDrafts", "ZipAR"]
