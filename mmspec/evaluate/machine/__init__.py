"""Benches of the machine: the ops of the verify core, and what a GPU is worth."""
