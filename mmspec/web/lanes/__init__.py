"""Two lanes, one after the other, each alone, with the moment of every round, and their HTML; no web framework."""
