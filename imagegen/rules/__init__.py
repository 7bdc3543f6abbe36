"""Relaxed acceptance rules for image codes: each names what it gives up, and has a setting that gives up nothing."""
