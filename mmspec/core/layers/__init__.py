"""The typed layers of a cache, under one contract: a pass never changes committed state, `commit` is the only mutation, a pass
that was not committed is forgotten by the next, rows that have stopped stay untouched."""
