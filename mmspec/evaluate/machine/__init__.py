"""Benches of the machine: the ops of the verify core, and the benefit of a GPU."""
