"""Image models that transformers ships, behind the one interface of `mmspec.imagegen.model`."""
