"""Tensor ops of the verify core, imported as `mmspec.kernels`."""

from __future__ import annotations

if __name__ != "mmspec.kernels":
    raise ImportError(f"expected import as 'mmspec.kernels', got {__name__!r}, import mmspec.kernels instead")
