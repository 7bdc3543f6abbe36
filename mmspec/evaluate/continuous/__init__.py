"""The bench of image models with continuous tokens: masked models such as MAR, and causal models."""
