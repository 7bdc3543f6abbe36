"""Adapters of the image models in transformers to the interface of `mmspec.imagegen.model`."""
