"""Block-by-block decoding through the common loop: request, target, drafter, output and cost model."""
