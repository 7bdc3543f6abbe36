"""Schedules of masked decoding: generation order, annealed denoising steps, cached features."""
