"""Decode rounds of text that run without the host: see `mmspec.core.graphs`."""
