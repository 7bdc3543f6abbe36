"""Benches, quality metrics and reports."""
