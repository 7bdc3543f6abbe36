"""Reward models that score frames: one protocol, published models, what is made of the scores of a block."""
