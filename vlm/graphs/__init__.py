"""Captured decoding rounds of text, which run without the host: see `mmspec.core.layers.graphs`."""
