"""Training of the zoo's models of continuous image tokens."""
