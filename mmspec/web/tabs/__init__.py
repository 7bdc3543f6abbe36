"""The tabs of the page, one for each domain: their controls and handlers."""
