"""Drafting images from the target's hidden states with one decoder layer."""
