"""`mmspec web`: drafted decoding beside plain decoding, seen in a browser. Needs the extra `web`.

What runs and what is shown are plain functions of `lanes` and `runs`, which know no web framework; `tabs`, `app` and
`server` put them on a page.
"""
