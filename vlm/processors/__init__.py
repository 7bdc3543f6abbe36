"""transformers' logits processors at every node of a draft, those that keep state included."""
