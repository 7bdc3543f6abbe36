"""Layers of transformers: how they are planned, masked, rotated, captured and made strict."""
