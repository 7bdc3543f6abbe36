"""The tabs of the page, one a domain: controls and what ties them to `lanes`."""
