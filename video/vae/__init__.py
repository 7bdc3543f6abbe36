"""Causal video autoencoders that decode and encode a video chunk by chunk."""
