"""What trained drafters of every domain share: shapes of drafts, their growth, and the transformer layer that runs."""
