"""The tabs of the page, one a file: controls and what ties them to `runs` and `paint`."""
