"""The parts that every room of the benches reads: prompts, provenance and media."""
