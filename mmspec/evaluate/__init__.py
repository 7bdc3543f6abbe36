"""A measuring engine, quality measures and report pages for all domains, and a folder per domain."""
