"""The common parts of trained drafters: shapes of drafts, their growth, and the transformer layer."""
