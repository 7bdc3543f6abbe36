"""Logits processors of other projects: whether they keep state, and how one that does is served along a draft."""
