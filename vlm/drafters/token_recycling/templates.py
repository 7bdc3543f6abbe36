"""Shapes of static draft trees."""

from __future__ import annotations

from mmspec.core.drafting.templates import likeliest_tree

# how often the target's next token is a table row's entry of rank 0, 1, ...: only the ratios shape the tree
HIT_RATES = (0.45, 0.13, 0.07, 0.05, 0.035, 0.025, 0.02, 0.015)


def small_template() -> tuple[int, ...]:
    """24 nodes down to depth 5: for CPUs, where a pass costs more with every node."""
    return likeliest_tree(24, 5, HIT_RATES)


def paper_template() -> tuple[int, ...]:
    """80 nodes down to depth 6, the size of "Turning Trash into Treasure: ... Token Recycling": for GPUs at batch 1."""
    return likeliest_tree(80, 6, HIT_RATES)
