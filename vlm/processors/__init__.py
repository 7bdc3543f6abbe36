"""Logits processors of transformers at every node of a draft, stateful processors included."""
