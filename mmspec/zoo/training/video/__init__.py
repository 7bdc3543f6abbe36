"""Training of the zoo's video models."""
