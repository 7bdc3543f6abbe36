"""Drafts of large images from small images (relaxed)."""

from __future__ import annotations

from mmspec.imagegen.multiscale.mulo import MuLo
from mmspec.imagegen.multiscale.upsamplers import PixelUpsampler

__all__ = ["MuLo", "PixelUpsampler"]
