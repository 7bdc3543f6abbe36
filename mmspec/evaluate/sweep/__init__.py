"""Grids of models, decodings and rules over prompt sets: what is made is kept, resumed, merged and judged."""
