"""Block-causal Wan: the transformer, its published checkpoints, and its state in a request."""
