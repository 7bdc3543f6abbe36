"""Wan, block-causal: the transformer, its published names, and its state in a request."""
