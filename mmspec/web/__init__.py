"""`mmspec web`: decoding with drafts beside plain decoding, in a browser. Needs the extra `web`.

`lanes` and `runs` decode and write HTML without a web framework; `tabs`, `app` and `server` build and serve the page.
"""
