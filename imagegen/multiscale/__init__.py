"""Drafting large pictures from small ones (relaxed)."""

from __future__ import annotations

from mmspec.imagegen.multiscale.mulo import MuLo
from mmspec.imagegen.multiscale.upsamplers import PixelUpsampler

__all__ = ["MuLo", "PixelUpsampler"]
