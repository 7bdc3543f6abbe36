"""Measures of quality over features and scores, with their extractors and reward models."""
