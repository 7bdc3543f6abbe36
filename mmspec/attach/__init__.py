"""`mmspec.enable` adds drafting and verification to an existing model or pipeline; `mmspec.disable` removes it."""
