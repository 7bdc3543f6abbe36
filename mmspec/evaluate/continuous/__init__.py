"""The bench of image models whose tokens are vectors: masked ones such as MAR, and causal ones."""
