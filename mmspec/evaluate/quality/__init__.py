"""Measures of quality over features and scores, whatever they are of."""
