"""What a GPU is worth here: ops, and what a pass over several drafted values costs models of the published sizes."""
