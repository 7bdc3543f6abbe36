"""The measuring engine: plans of cells, interleaved requests, records that survive a stop, and rows."""
