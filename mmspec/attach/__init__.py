"""One line to draft and verify with what is already there: `mmspec.enable` a model or a pipeline, and disable it again."""
