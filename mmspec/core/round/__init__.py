"""The round: drafts, rules, random keys, the cache, targets and the loop."""
