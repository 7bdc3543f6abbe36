"""Continuous image tokens: vectors drawn by a diffusion head, in MAR's masked order or in raster order."""
