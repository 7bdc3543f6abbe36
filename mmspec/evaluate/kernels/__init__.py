"""How fast the verify core's ops are, against the code one would write first and against what memory allows."""
