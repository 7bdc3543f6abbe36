"""Causal models of continuous tokens: the next vector in raster order, with a KV cache."""
