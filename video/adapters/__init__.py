"""Autoregressive video models of diffusers as block video models, a file per family."""
