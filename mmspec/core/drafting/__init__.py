"""What trained drafters of every domain share: shapes of drafts, how they grow, the layer that runs, files."""
