"""Sampling of a continuous token from its head: denoising steps, drafted and verified over head time."""
