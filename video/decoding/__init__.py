"""Block by block through the one round: rows, the target that holds them, the drafter, what it all took."""
