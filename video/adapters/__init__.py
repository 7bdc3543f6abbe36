"""Autoregressive video models of diffusers as block video models, one file a family."""
