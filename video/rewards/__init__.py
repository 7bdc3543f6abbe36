"""Reward models that score frames: a protocol, published models, and the score of a block."""
