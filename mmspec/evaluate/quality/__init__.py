"""Measures of quality over features and scores, and the extractors and reward models they are taken with."""
