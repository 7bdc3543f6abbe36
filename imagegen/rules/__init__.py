"""Relaxed acceptance rules for image codes. Each documents how it departs from the target and has an exact setting."""
