"""The measuring engine: plans of cells, requests in turn, records that are kept and taken up again, and rows."""
